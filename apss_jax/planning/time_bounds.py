"""Step times that no partition of a layout undercuts, and one that a plain partition reaches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int, Num

from apss_jax.legality.domains import tensor_groups
from apss_jax.legality.facts import Facts
from apss_jax.planning.figures import SettingFigures
from apss_jax.schema.cluster import ClusterProfile, Link
from apss_jax.schema.layout import Layouts
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import COMM_KINDS

PerLayout = Float[np.ndarray, " batch"]
PerType = Float[np.ndarray, "batch device_types"]
Counts = Int[np.ndarray, " batch"]
TENSOR, CONTEXT, EXPERT = (COMM_KINDS.index(kind) for kind in ("tensor", "context", "expert"))
# Adam's memory traffic per parameter, as in the cost model: the shard's states, the whole copy.
OPTIMIZER_SHARDED = 28.0
OPTIMIZER_WHOLE = 6.0


@dataclass(frozen=True)
class StepBounds:
    """Bounds from below that add up one cause after the other, and one from above."""

    work_s: PerLayout  # compute alone, spread over the stages without any waiting
    filled_s: PerLayout  # and the pipeline's filling and draining
    layer_comm_s: PerLayout  # and the collectives inside layers on the fastest links
    lower_s: PerLayout  # and gradient reduction and update on the fastest links
    upper_s: PerLayout  # of an even partition on the slowest links


@dataclass(frozen=True)
class TimeBounds:
    """Bounds on the predicted time of a step."""

    facts: Facts
    cluster: ClusterProfile
    stack: Stack
    weight_bytes: float

    def step_bounds(
        self, layouts: Layouts, figures: SettingFigures, index: Int[np.ndarray, " batch"]
    ) -> StepBounds:
        """Returns the bounds of every layout."""
        compute_s = figures.whole_s[index]
        comm_s = self._fastest_comm_s(layouts, figures, index)[:, None]
        counts = self._micro_batches(layouts)
        plain = layouts.virtual_stages == 1
        layer_comm_s = self._least_s(layouts, compute_s + comm_s, counts, plain)
        with_tail_s = self._with_tail_s(
            layouts,
            (compute_s + comm_s).min(axis=1),
            counts,
            self._least_tail_s(layouts, figures, index),
        )
        return StepBounds(
            work_s=self._least_s(layouts, compute_s, counts, np.zeros_like(plain)),
            filled_s=self._least_s(layouts, compute_s, counts, plain),
            layer_comm_s=layer_comm_s,
            lower_s=np.maximum(layer_comm_s, with_tail_s) + self.stack.step_s,
            upper_s=self._even_s(layouts, figures, index, counts),
        )

    def longest_share(
        self, layouts: Layouts, figures: SettingFigures, index: Int[np.ndarray, " batch"]
    ) -> PerLayout:
        """Returns the largest share of all compute that one stage of a best partition can have.

        With a larger one the step (at least micro-batches x that stage) would take longer than
        under an even partition, which takes (m + p - 1) x (an even share and one unit).
        """
        whole = figures.whole_s
        slowest, fastest = whole.max(axis=1), whole.min(axis=1)
        unit = figures.largest_s.max(axis=1) / slowest
        stages, counts = layouts.pipeline_parallel, self._micro_batches(layouts)
        even = 1.0 / stages + unit[index]
        spread = (slowest / fastest)[index]
        return np.minimum((1.0 + (stages - 1) / counts) * even * spread, 1.0)

    def _least_s(
        self, layouts: Layouts, whole_s: PerType, counts: Counts, fills: Bool[np.ndarray, " batch"]
    ) -> PerLayout:
        """Returns the least step time when the model's work may be split at will.

        Stage s waits for the stages before it and then works on m micro-batches, so within T it
        holds at most (T / m) (1 - 1/m)^s of one micro-batch's time; the sum over the stages must
        reach the whole model. Where the schedule does not fill in order, each stage holds T / m.
        The fastest devices take the first stages.
        """
        stages = np.minimum(self._stages_by_type(layouts), layouts.pipeline_parallel[:, None])
        before = np.concatenate([np.zeros_like(stages[:, :1]), stages[:, :-1]], axis=1)
        kept = (1.0 - 1.0 / counts)[:, None]
        filling = kept**before - kept**stages
        shares = np.where(fills[:, None], filling, (stages - before) / counts[:, None])
        order = self._fastest_first
        return 1.0 / np.sum(shares / whole_s[:, order], axis=1)

    def _with_tail_s(
        self, layouts: Layouts, whole_s: PerLayout, counts: Counts, tail_s: PerLayout
    ) -> PerLayout:
        """Returns the least step time with a tail that is in proportion to what a stage holds.

        `tail_s` is that of the whole model. Each stage ends after its own work and its own tail;
        the sum over the stages, with weights (1 - 1/m)^(p-1-s) where they wait for each other in
        order, holds the whole model's work m times and its tail at least once.
        """
        stages = layouts.pipeline_parallel
        kept = 1.0 - 1.0 / counts
        in_order = counts * whole_s + kept ** (stages - 1) * tail_s
        in_order = in_order / (counts * (1.0 - kept**stages))
        apart = (counts * whole_s + tail_s) / stages
        return np.where(layouts.virtual_stages == 1, np.maximum(in_order, apart), apart)

    @cached_property
    def _fastest_first(self) -> Int[np.ndarray, " device_types"]:
        rates = [self.cluster.device_types[name] for name in self.cluster.used_types]
        peak = [max(rate.peak_flops_per_s.values(), default=0.0) for rate in rates]
        return np.argsort(-np.array(peak), kind="stable")

    def _stages_by_type(self, layouts: Layouts) -> Num[np.ndarray, "batch device_types"]:
        """Returns how many stages the types up to each can fill alone, fastest first.

        The last entry is every stage; tensor groups larger than a domain are not told apart.
        """
        tensor = layouts.tensor_parallel
        per_stage = layouts.data_parallel * layouts.context_parallel
        groups = self._groups_by_type[:, np.minimum(tensor, self.facts.num_devices)]
        found = np.cumsum(groups[self._fastest_first], axis=0).T // per_stage[:, None]
        spans = tensor > max(self.facts.domains)
        return np.where(spans[:, None] | _is_last(found), layouts.pipeline_parallel[:, None], found)

    @cached_property
    def _groups_by_type(self) -> Int[np.ndarray, "device_types batch"]:
        degrees = np.arange(1, self.facts.num_devices + 1)
        pairs = list(zip(self.facts.domains, self.facts.domain_types, strict=True))
        rows = []
        for kind in range(len(self.facts.device_types)):
            own = tuple(size for size, its in pairs if its == kind)
            rows.append(np.concatenate([[0], tensor_groups(own, degrees)]))
        return np.stack(rows)

    def _micro_batches(self, layouts: Layouts) -> Counts:
        return self.facts.global_batch // (layouts.data_parallel * layouts.micro_batch)

    def _fastest_comm_s(
        self, layouts: Layouts, figures: SettingFigures, index: Int[np.ndarray, " batch"]
    ) -> PerLayout:
        inside, across = self._link_rates.best_inside, self._link_rates.best_across
        lanes = max(self.facts.domains)
        crossing = np.minimum(inside, across * lanes)
        tensor = np.where(layouts.tensor_parallel > lanes, crossing, inside)
        return self._comm_s(layouts, figures, index, tensor, max(inside, across * lanes))

    def _comm_s(
        self,
        layouts: Layouts,
        figures: SettingFigures,
        index: Int[np.ndarray, " batch"],
        tensor_bytes_per_s: PerLayout,
        other_bytes_per_s: float,
    ) -> PerLayout:
        moved = figures.comm_bytes[index]
        exposed = self.stack.context_exposed_fraction
        tensor = _crossing(layouts.tensor_parallel) * moved[:, TENSOR] / tensor_bytes_per_s
        context = _crossing(layouts.context_parallel) * moved[:, CONTEXT] * exposed
        expert = _crossing(layouts.expert_parallel) * moved[:, EXPERT]
        return tensor + (context + expert) / other_bytes_per_s

    def _least_tail_s(
        self, layouts: Layouts, figures: SettingFigures, index: Int[np.ndarray, " batch"]
    ) -> PerLayout:
        """Returns reduction and update of all parameters on one stage, on the fastest links.

        A gradient group that has more members than tensor groups fit into the largest domain
        crosses the network, over at most that many adapters. What replicas reduce is left out.
        """
        links, zero = self._link_rates, layouts.zero_stage
        members = layouts.shards
        lanes = np.maximum(max(self.facts.domains) // layouts.tensor_parallel, 1)
        across = np.where(links.shares, links.best_across, links.best_across * lanes)
        rate = np.where(members > lanes, np.minimum(links.best_inside, across), links.best_inside)
        scatter, gather = self.stack.reduced_gradient_bytes, self.weight_bytes
        plain = scatter + np.where(zero > 0, gather, scatter)
        counts = self._micro_batches(layouts)
        whole = np.where(zero == 3, 2 * counts * gather + scatter, plain)
        sent = np.array(self.stack.exposed_fractions)[zero] * whole
        dense, expert = figures.dense.total[index], figures.expert.total[index]
        updated = OPTIMIZER_SHARDED / np.where(zero > 0, members, 1) + OPTIMIZER_WHOLE
        return dense * (_crossing(members) * sent / rate + updated / self._memory_rates.max()) + (
            expert * OPTIMIZER_WHOLE / self._memory_rates.max()
        )

    @cached_property
    def _memory_rates(self) -> Float[np.ndarray, " device_types"]:
        kinds = [self.cluster.device_types[name] for name in self.cluster.used_types]
        return np.array([kind.memory_bytes_per_s * kind.rates.memory_fraction for kind in kinds])

    def _even_s(
        self,
        layouts: Layouts,
        figures: SettingFigures,
        index: Int[np.ndarray, " batch"],
        counts: Counts,
    ) -> PerLayout:
        """Returns (m + p - 1) x (the longest stage of an even partition, its transfers) and tail.

        Infinite where chunks are interleaved: their waiting is not bounded here.
        """
        links = self._link_rates
        several = layouts.pipeline_parallel > 1
        inside = np.where(
            layouts.tensor_parallel > min(self.facts.domains), links.worst, links.worst_inside
        )
        comm_s = self._comm_s(layouts, figures, index, inside, links.worst)
        local = (layouts.context_parallel * layouts.expert_parallel == 1) & (
            layouts.tensor_parallel <= min(self.facts.domains)
        )
        calls_s = figures.comm_calls[index].sum(axis=1)
        calls_s = calls_s * np.where(local, links.call_inside_s, links.call_s)
        whole_s = figures.whole_s[index].max(axis=1) + comm_s + calls_s
        unit = np.where(several, figures.largest_s.max(axis=1)[index], 0.0) * 1.5
        transfer_s = figures.boundary_bytes[index] / links.worst + links.call_s
        stage_s = whole_s / layouts.pipeline_parallel + unit + np.where(several, 2 * transfer_s, 0)
        rounds = counts + layouts.pipeline_parallel - 1
        step_s = rounds * stage_s + self._tail_s(layouts, figures, index, counts)
        return np.where(layouts.virtual_stages == 1, step_s, np.inf) + self.stack.step_s

    def _tail_s(
        self,
        layouts: Layouts,
        figures: SettingFigures,
        index: Int[np.ndarray, " batch"],
        counts: Counts,
    ) -> PerLayout:
        """Returns gradient reduction and update of an even stage that also holds an end."""
        stages, zero = layouts.pipeline_parallel, layouts.zero_stage
        total = figures.dense.total[index] + figures.expert.total[index]
        part = 2 * total / stages + figures.dense.end[index] + figures.tied[index]
        held = np.where(stages > 1, np.minimum(part, total), total)
        scatter, gather = self.stack.reduced_gradient_bytes, self.weight_bytes
        plain = scatter + np.where(zero > 0, gather, scatter)
        sent = np.where(zero == 3, 2 * counts * gather + scatter, plain)
        ranks = layouts.data_parallel * layouts.context_parallel
        # Scattered, then reduced over replicas, gradients cross links as often as over all ranks,
        # and once more a shard of them.
        sent = sent + np.where(layouts.shards < ranks, scatter / layouts.shards, 0.0)
        shared = ranks > 1
        reduce_s = np.where(shared, held * sent / self._link_rates.worst, 0.0)
        owners_s = self.stack.owner_step_s * figures.kind_count.sum() * layouts.shards
        reduce_s = reduce_s + np.where((zero == 1) | (zero == 2), owners_s, 0.0)
        updated = held * (OPTIMIZER_SHARDED + OPTIMIZER_WHOLE)
        return reduce_s + updated / self._memory_rates.min()

    @cached_property
    def _link_rates(self) -> LinkRates:
        return LinkRates.of(self.cluster, self.stack)


@dataclass(frozen=True)
class LinkRates:
    """The fastest and the slowest that links of a cluster can be for one device."""

    best_inside: float
    worst_inside: float
    best_across: float
    worst: float  # also across nodes, when all devices of a node use one shared network
    shares: bool  # whether every network is shared by the devices of its node
    call_s: float  # the longest latency, of a collective over all nodes
    call_inside_s: float  # the longest inside a domain

    @staticmethod
    def of(cluster: ClusterProfile, stack: Stack) -> LinkRates:
        """Returns the extremes over all links that node groups and bridges use."""
        groups, links = cluster.nodes, cluster.links
        inside = [links[group.intra_link] for group in groups]
        across = [links[group.network] for group in groups]
        across += [links[bridge.link] for bridge in cluster.bridges]
        crowd = max(group.devices for group in groups)
        several = sum(group.count for group in groups) > 1
        slow_inside = min(_rate(link, crowd) for link in inside)
        slow_across = min(_rate(link, crowd) for link in across) if several else slow_inside
        hops = sum(group.count for group in groups)  # one inside, the others from node to node
        latency_s = max(
            max(link.latency_s, link.step_latency_s or 0.0) for link in [*inside, *across]
        )
        added_s = max(stack.collective_latency_s, stack.transfer_latency_s)
        return LinkRates(
            best_inside=max(_rate(link, 1) for link in inside),
            worst_inside=slow_inside,
            best_across=max(_rate(link, 1) for link in across),
            worst=min(slow_inside, slow_across),
            shares=all(link.shared_by_node for link in across),
            call_s=latency_s * hops + added_s,
            call_inside_s=max(link.latency_s for link in inside) + added_s,
        )


def _rate(link: Link, crowd: int) -> float:
    """Returns what a collective reaches when `crowd` devices of a node use the link at once."""
    return link.bytes_per_s * link.reached_fraction / (crowd if link.shared_by_node else 1)


def _crossing(degree: Counts) -> PerLayout:
    """Returns the share of a gathered buffer that passes through each device."""
    return (degree - 1) / degree


def _is_last(found: Num[np.ndarray, "batch device_types"]) -> Bool[np.ndarray, "_ device_types"]:
    return np.arange(found.shape[1])[None] == found.shape[1] - 1
