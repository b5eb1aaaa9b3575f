"""Where every device stands, and what link groups and pairs of devices see.

Devices are numbered node by node in the order of the file. A *domain* is what shares the fast
link: a node, or `nodes_per_domain` nodes of one group.

A collective over a group runs as a ring in device order. Inside one domain its rate is the intra
link's. Across domains, each end of a step of the ring offers its own network: (members in the
domain) x (rate of one device), or, where the node shares its network, the node's rate divided by
the groups that use the node at once. A step takes the smaller offer of its two ends, or the bridge
between their node groups where there is one. The ring runs at its slowest step, and never faster
than the intra link of a domain with several members: min(intra, members x NIC x reached fraction).
Its latency is the intra link's plus the network's for each domain but one: the ring passes them
one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.schema.cluster import ClusterProfile, Link

PerDevice = Int[np.ndarray, " devices"]
Groups = Int[np.ndarray, "batch devices"]
PerGroup = Float[np.ndarray, " batch"]


class GroupLink(NamedTuple):
    """What a collective over each group sees, per one-way collective.

    `bytes_per_s` is the ring's bus rate with the reached fraction in it: a one-way collective on a
    buffer of S bytes in a group of n takes (n - 1) / n * S / bytes_per_s + latency_s. A group of
    one device has latency 0.
    """

    bytes_per_s: PerGroup
    latency_s: PerGroup
    num_domains: Int[np.ndarray, " batch"]


class TransferLink(NamedTuple):
    """What the slowest pair of each row sees when all pairs of the row send at once."""

    bytes_per_s: PerGroup
    latency_s: PerGroup


class _LinkTable(NamedTuple):
    """Figures of several links, one entry for each."""

    collective_bytes_per_s: Float[np.ndarray, " batch"]
    transfer_bytes_per_s: Float[np.ndarray, " batch"]
    latency_s: Float[np.ndarray, " batch"]
    step_latency_s: Float[np.ndarray, " batch"]
    shared: Bool[np.ndarray, " batch"]


class _End(NamedTuple):
    """One end of each step between domains."""

    group: Int[np.ndarray, "batch nodes"]
    members: Float[np.ndarray, "batch nodes"]  # devices that send over networks of their own
    share: Float[np.ndarray, "batch nodes"]  # of a network that the node shares


class _Runs(NamedTuple):
    """Each group's members, gathered by domain: one row per group, one column per domain visited.

    Columns beyond a group's own number of domains have no members.
    """

    num_domains: Int[np.ndarray, " batch"]
    members: Int[np.ndarray, "batch nodes"]
    nodes_used: Int[np.ndarray, "batch nodes"]
    first_device: Int[np.ndarray, "batch nodes"]


@dataclass(frozen=True)
class Topology:
    """The place of every device of a cluster, as arrays."""

    cluster: ClusterProfile
    node: PerDevice
    group: PerDevice  # index in `cluster.nodes`
    domain: PerDevice
    device_type: PerDevice  # index in `cluster.used_types`

    @classmethod
    def of(cls, cluster: ClusterProfile) -> Topology:
        """Returns the topology of a cluster."""
        groups = cluster.nodes
        devices = [group.devices for group in groups for _ in range(group.count)]
        group_of_node = np.repeat(np.arange(len(groups)), [group.count for group in groups])
        node = np.repeat(np.arange(len(devices)), devices)
        types = np.array([cluster.used_types.index(group.device_type) for group in groups])
        group = group_of_node[node]
        return cls(cluster, node, group, _domain_of_node(cluster)[node], types[group])

    @property
    def num_devices(self) -> int:
        """Returns the number of devices."""
        return self.node.shape[0]

    def link_between(self, a: int, b: int) -> Link:
        """Returns the link between two devices: the intra link, or the network between nodes."""
        if self.domain[a] == self.domain[b]:
            return self.cluster.links[self.cluster.nodes[self.group[a]].intra_link]
        return network_between(self.cluster, int(self.group[a]), int(self.group[b]))

    def group_link(self, devices: PerDevice, *, concurrent_groups: int = 1) -> GroupLink:
        """Returns what a collective over ONE group of devices sees, with a batch axis of 1."""
        return self.group_links(np.asarray(devices)[None], concurrent_groups=concurrent_groups)

    def group_links(self, groups: Groups, *, concurrent_groups: int | None = None) -> GroupLink:
        """Returns what collectives over groups of equal size see.

        `concurrent_groups` says how many groups use a node's network at once; None counts it from
        the given groups, which are then all the groups that communicate at the same time.
        """
        members = np.sort(np.asarray(groups), axis=1)
        if np.array_equal(self.domain[members[:, 0]], self.domain[members[:, -1]]):
            return self._inside_one_domain(members)
        runs = self._runs(members)
        intra_rate, intra_latency = self._inside(runs)
        network_rate, network_latency = self._across(runs, self._users(runs, concurrent_groups))
        latency = intra_latency + network_latency * (runs.num_domains - 1)
        return GroupLink(np.minimum(intra_rate, network_rate), latency, runs.num_domains)

    def transfer_link(self, senders: Groups, receivers: Groups) -> TransferLink:
        """Returns what transfers from `senders[row, k]` to `receivers[row, k]` see.

        A network that its node shares is divided by the transfers of the row that leave, or enter,
        that node over it at once. The reached fraction of collectives plays no part.
        """
        inside = self.domain[senders] == self.domain[receivers]
        ends = [
            _End(self.group[e], np.ones(e.shape), 1 / self._busy(e, inside))
            for e in (senders, receivers)
        ]
        figures = ("transfer_bytes_per_s", "latency_s")
        network_rate, network_latency = self._step(ends[0], ends[1], *figures)
        intra_rate = self._intra.transfer_bytes_per_s[ends[0].group]
        intra_latency = self._intra.latency_s[ends[0].group]
        rate = np.where(inside, intra_rate, network_rate)
        latency = np.where(inside, intra_latency, network_latency)
        return TransferLink(rate.min(axis=1), latency.max(axis=1))

    def _inside_one_domain(self, groups: Groups) -> GroupLink:
        group = self.group[groups[:, 0]]
        latency = self._intra.latency_s[group] * (groups.shape[1] > 1)
        return GroupLink(
            self._intra.collective_bytes_per_s[group], latency, np.ones(len(groups), np.int64)
        )

    def _runs(self, groups: Groups) -> _Runs:
        rows, size = groups.shape
        domain = self.domain[groups]
        starts = np.concatenate([np.ones((rows, 1), bool), domain[:, 1:] != domain[:, :-1]], axis=1)
        run = np.cumsum(starts, axis=1) - 1
        columns = int(run.max()) + 1
        cell = run + columns * np.arange(rows)[:, None]
        node = self.node[groups]
        new_node = starts.copy()
        new_node[:, 1:] |= node[:, 1:] != node[:, :-1]
        first = np.zeros(rows * columns, np.int64)
        first[cell[starts]] = groups[starts]

        def per_run(counted: Bool[np.ndarray, "batch devices"]) -> Int[np.ndarray, "batch nodes"]:
            return np.bincount(cell[counted], minlength=rows * columns).reshape(rows, columns)

        members = per_run(np.ones((rows, size), bool))
        return _Runs(run[:, -1] + 1, members, per_run(new_node), first.reshape(rows, columns))

    def _inside(self, runs: _Runs) -> tuple[PerGroup, PerGroup]:
        """Returns the slowest intra rate and the longest latency of domains with 2+ members."""
        table = self._intra
        group = self.group[runs.first_device]
        several = runs.members > 1
        rate = np.where(several, table.collective_bytes_per_s[group], np.inf).min(axis=1)
        alone = table.collective_bytes_per_s[group[:, 0]]
        latency = np.where(several, table.latency_s[group], 0.0).max(axis=1)
        return np.where((runs.num_domains == 1) & np.isinf(rate), alone, rate), latency

    def _across(
        self, runs: _Runs, users: Float[np.ndarray, "batch nodes"]
    ) -> tuple[PerGroup, PerGroup]:
        """Returns rate and latency of the slowest step of each ring between domains."""
        rows, columns = runs.members.shape
        column = np.arange(columns)[None, :]
        is_last = column == runs.num_domains[:, None] - 1
        follower = np.arange(rows)[:, None], np.where(is_last, 0, column + 1) % columns
        divided = runs.nodes_used / np.maximum(users, 1)
        here = _End(self.group[runs.first_device], runs.members, divided)
        there = _End(*(values[follower] for values in here))
        rate, latency = self._step(here, there, "collective_bytes_per_s", "step_latency_s")
        is_step = (runs.members > 0) & (runs.num_domains[:, None] > 1)
        rate = np.where(is_step, rate, np.inf).min(axis=1)
        return rate, np.where(is_step, latency, 0.0).max(axis=1)

    def _step(
        self, here: _End, there: _End, rate_figure: str, latency_figure: str
    ) -> tuple[Float[np.ndarray, "batch nodes"], Float[np.ndarray, "batch nodes"]]:
        """Returns rate and latency between two ends in different domains."""

        def offer(end: _End) -> Float[np.ndarray, "batch nodes"]:
            lanes = np.where(self._network.shared[end.group], end.share, end.members)
            return getattr(self._network, rate_figure)[end.group] * lanes

        latency_s = getattr(self._network, latency_figure)
        rate = np.minimum(offer(here), offer(there))
        latency = np.maximum(latency_s[here.group], latency_s[there.group])
        for index, bridge in enumerate(self.cluster.bridges):
            a, b = bridge.groups
            joined = ((here.group == a) & (there.group == b)) | (
                (here.group == b) & (there.group == a)
            )
            shared = self._bridges.shared[index]
            lanes = [end.share if shared else end.members for end in (here, there)]
            bridged = getattr(self._bridges, rate_figure)[index] * np.minimum(*lanes)
            rate = np.where(joined, bridged, rate)
            latency = np.where(joined, getattr(self._bridges, latency_figure)[index], latency)
        return rate, latency

    def _users(
        self, runs: _Runs, concurrent_groups: int | None
    ) -> Float[np.ndarray, "batch nodes"]:
        """Returns how many groups use the network of each run's node at once."""
        if concurrent_groups is not None:
            return np.full(runs.members.shape, float(concurrent_groups))
        crosses = (runs.members > 0) & (runs.num_domains[:, None] > 1)
        node = self.node[runs.first_device]
        users = np.bincount(node[crosses], minlength=int(self.node[-1]) + 1)
        return users[node].astype(float)

    def _busy(self, ends: Groups, inside: Bool[np.ndarray, "batch devices"]) -> Groups:
        """Returns how many transfers of the row use the network of each end's node; at least 1."""
        node = self.node[ends]
        num_nodes = int(self.node[-1]) + 1
        cell = node + num_nodes * np.arange(len(node))[:, None]
        counts = np.bincount(cell[~inside], minlength=num_nodes * len(node))
        return np.maximum(counts[cell], 1)

    @cached_property
    def _network(self) -> _LinkTable:
        return self._figures(group.network for group in self.cluster.nodes)

    @cached_property
    def _intra(self) -> _LinkTable:
        return self._figures(group.intra_link for group in self.cluster.nodes)

    @cached_property
    def _bridges(self) -> _LinkTable:
        return self._figures(bridge.link for bridge in self.cluster.bridges)

    def _figures(self, names: Iterable[str]) -> _LinkTable:
        links = [self.cluster.links[name] for name in names]
        return _LinkTable(
            np.array([link.bytes_per_s * link.reached_fraction for link in links]),
            np.array([link.bytes_per_s * link.transfer_fraction for link in links]),
            np.array([link.latency_s for link in links]),
            np.array([_step_latency_s(link) for link in links]),
            np.array([link.shared_by_node for link in links], dtype=bool),
        )


def _step_latency_s(link: Link) -> float:
    return link.latency_s if link.step_latency_s is None else link.step_latency_s


def network_between(cluster: ClusterProfile, a: int, b: int) -> Link:
    """Returns the link between nodes of two node groups: their bridge, or the slower network."""
    for bridge in cluster.bridges:
        if a != b and set(bridge.groups) == {a, b}:
            return cluster.links[bridge.link]
    ends = [cluster.links[cluster.nodes[index].network] for index in (a, b)]
    return min(ends, key=lambda link: link.bytes_per_s * link.reached_fraction)


def _domain_of_node(cluster: ClusterProfile) -> Int[np.ndarray, " nodes"]:
    first, parts = 0, []
    for group in cluster.nodes:
        index = np.arange(group.count) // group.nodes_per_domain
        parts.append(first + index)
        first += int(index[-1]) + 1
    return np.concatenate(parts)
