"""Which devices run which stage, and what the links between them allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.schema.layout import Layout
from apss_jax.schema.topology import Topology

DeviceGrid = Int[np.ndarray, "stages data_ranks context_ranks tensor_ranks"]
PerStage = Float[np.ndarray, "2 stages"]  # seconds per byte and per call
SlowestFn = Callable[[Int[np.ndarray, "groups ranks"]], PerStage]
"""Returns seconds per byte and per call of the slowest group of each stage."""


@dataclass(frozen=True)
class Placement:
    """The devices of each stage, and seconds per byte and per call of the slowest group of each.

    A one-way collective of a whole buffer of S bytes takes S x s_per_byte + s_per_call; the share
    (n - 1) / n that crosses links is in s_per_byte. A group of one device takes no time. Gradients
    are scattered and gathered over the ranks that ZeRO shards over; where several such groups hold
    the same, each rank's shard of the buffer is also reduced over them, which takes S x
    replica_s_per_byte + replica_s_per_call.
    """

    devices: DeviceGrid
    has_type: Bool[np.ndarray, "stages device_types"]
    capacity_bytes: Float[np.ndarray, " stages"]
    comm_s_per_byte: Float[np.ndarray, "stages comm_kinds"]
    comm_s_per_call: Float[np.ndarray, "stages comm_kinds"]
    gradient_s_per_byte: Float[np.ndarray, "stages parameter_kinds"]
    gradient_s_per_call: Float[np.ndarray, "stages parameter_kinds"]
    replica_s_per_byte: Float[np.ndarray, "stages parameter_kinds"]
    replica_s_per_call: Float[np.ndarray, "stages parameter_kinds"]
    transfer_s_per_byte: Float[
        np.ndarray, " stages"
    ]  # to the next stage; the last one's to stage 0
    transfer_s_per_call: Float[np.ndarray, " stages"]


def degrees_of(layout: Layout) -> tuple[int, int, int, int, int, int]:
    """Returns what decides where ranks stand, and with whom they communicate."""
    return (
        layout.tensor_parallel,
        layout.context_parallel,
        layout.data_parallel,
        layout.pipeline_parallel,
        layout.expert_parallel,
        layout.replicas,
    )


def device_orders(topology: Topology) -> Iterator[Int[np.ndarray, " devices"]]:
    """Yields the orders of devices that are worth trying: as given, slow types first, fast first.

    Nodes stay whole. Equal devices give one order.
    """
    seen = set()
    speed = _speed_rank(topology)
    for key in (np.zeros_like(speed), speed, -speed):
        order = np.lexsort((np.arange(len(key)), topology.node, topology.group, key))
        if order.tobytes() not in seen:
            seen.add(order.tobytes())
            yield order


def assign_devices(
    topology: Topology, order: Int[np.ndarray, " devices"], layout: Layout
) -> DeviceGrid | None:
    """Returns the devices of every rank, tensor fastest, then context, then data, then stages.

    Tensor groups stay inside a domain (or are whole domains); devices that fill no group stay
    idle. None when there are not enough groups.
    """
    groups = tensor_groups(topology, order, layout.tensor_parallel)
    ranks = (layout.pipeline_parallel, layout.data_parallel, layout.context_parallel)
    needed = int(np.prod(ranks))
    if len(groups) < needed:
        return None
    return groups[:needed].reshape(*ranks, layout.tensor_parallel)


def tensor_groups(
    topology: Topology, order: Int[np.ndarray, " devices"], size: int
) -> Int[np.ndarray, "groups ranks"]:
    """Returns tensor groups in the order of the devices; devices that fill none stay idle."""
    domain = topology.domain[order]
    starts = np.flatnonzero(np.r_[True, domain[1:] != domain[:-1]])
    members = np.diff(np.r_[starts, len(order)])
    if size > members.max():
        return _whole_domains(order, starts, members, size)
    within = np.arange(len(order)) - np.repeat(starts, members)
    kept = within < np.repeat(members // size * size, members)
    return order[kept].reshape(-1, size)


def _whole_domains(
    order: Int[np.ndarray, " devices"],
    starts: Int[np.ndarray, " nodes"],
    members: Int[np.ndarray, " nodes"],
    size: int,
) -> Int[np.ndarray, "groups ranks"]:
    """Returns groups of whole neighbouring domains of one size; other domains stay idle."""
    found = []
    borders = np.flatnonzero(np.r_[True, np.diff(members) != 0, True])
    for first, end in pairwise(borders.tolist()):
        if size % members[first] == 0:
            run = order[starts[first] : starts[first] + members[first:end].sum()]
            found.append(run[: len(run) // size * size].reshape(-1, size))
    return np.concatenate(found) if found else np.zeros((0, size), dtype=order.dtype)


def place(
    topology: Topology, devices: DeviceGrid, expert_parallel: int, replicas: int = 1
) -> Placement:
    """Returns what the links between the chosen devices allow.

    `replicas` groups of data and context ranks each hold all that ZeRO shards: `Layout.replicas`.
    """
    ranks = devices.reshape(len(devices), -1)
    period = _period(topology, ranks)
    index = np.arange(len(devices)) % period
    comm, gradient, replica = (
        [costs[:, index] for costs in kinds]
        for kinds in _stage_costs(topology, devices[:period], expert_parallel, replicas)
    )
    onward = _transfer_costs(topology, ranks, period)
    return Placement(
        devices=devices,
        has_type=_types_present(topology, ranks[:period])[index],
        capacity_bytes=capacity_bytes_of(topology, devices[:period])[index],
        comm_s_per_byte=np.stack([c[0] for c in comm], axis=-1),
        comm_s_per_call=np.stack([c[1] for c in comm], axis=-1),
        gradient_s_per_byte=np.stack([g[0] for g in gradient], axis=-1),
        gradient_s_per_call=np.stack([g[1] for g in gradient], axis=-1),
        replica_s_per_byte=np.stack([r[0] for r in replica], axis=-1),
        replica_s_per_call=np.stack([r[1] for r in replica], axis=-1),
        transfer_s_per_byte=onward[0],
        transfer_s_per_call=onward[1],
    )


def _stage_costs(
    topology: Topology, devices: DeviceGrid, expert_parallel: int, replicas: int
) -> tuple[list[PerStage], list[PerStage], list[PerStage]]:
    """Returns the costs of communication, of sharded gradients and of replicas, by kind."""
    stages, data, context, tensor = devices.shape
    shards = data * context
    expert_data = shards // expert_parallel
    by_tensor = devices.reshape(-1, tensor)
    by_context = devices.transpose(0, 1, 3, 2).reshape(-1, context)
    by_shard = devices.transpose(0, 3, 1, 2).reshape(-1, shards)
    by_expert = by_shard.reshape(-1, expert_data, expert_parallel)
    across = by_expert.transpose(0, 2, 1).reshape(-1, expert_data)

    def slowest(groups: Int[np.ndarray, "groups ranks"]) -> PerStage:
        return _collective_costs(topology, groups).reshape(2, stages, -1).max(axis=-1)

    comm = [slowest(g) for g in (by_tensor, by_context, by_expert.reshape(-1, expert_parallel))]
    dense = _reduction(slowest, by_shard, replicas)
    experts = dense if expert_parallel == 1 else _reduction(slowest, across, replicas)
    gradient, replica = zip(dense, experts, strict=True)
    return comm, list(gradient), list(replica)


def _reduction(
    slowest: SlowestFn, ranks: Int[np.ndarray, "groups ranks"], replicas: int
) -> tuple[PerStage, PerStage]:
    """Returns the costs of the groups that shard, and of reducing over those that hold the same.

    Neighbouring ranks form a group (torchtitan distributed/parallel_dims.py, Megatron-LM
    core/parallel_state.py). An all-reduce is two one-way collectives, of one shard of the buffer.
    """
    shards = ranks.shape[1] // replicas
    grid = ranks.reshape(-1, replicas, shards)
    within = slowest(grid.reshape(-1, shards))
    if replicas == 1:
        return within, np.zeros_like(within)
    across = slowest(grid.transpose(0, 2, 1).reshape(-1, replicas))
    return within, 2.0 * across / np.array([[shards], [1]])


def _collective_costs(
    topology: Topology, groups: Int[np.ndarray, "groups ranks"]
) -> Float[np.ndarray, "2 groups"]:
    """Returns seconds per byte of the whole buffer and per call; all groups run at once."""
    size = groups.shape[1]
    if size == 1:
        return np.zeros((2, len(groups)))
    order = np.argsort(groups[:, 0], kind="stable")
    period = _period(topology, groups[order])
    link = topology.group_links(groups[order[:period]])
    costs = np.stack([(size - 1) / size / link.bytes_per_s, link.latency_s])
    found = np.empty((2, len(groups)))
    found[:, order] = costs[:, np.arange(len(groups)) % period]
    return found


def _transfer_costs(
    topology: Topology, ranks: Int[np.ndarray, "stages ranks"], period: int
) -> Float[np.ndarray, "2 stages"]:
    """Returns seconds per byte and per call from each stage to the next, the last one's to 0."""
    stages = len(ranks)
    receivers = np.roll(ranks, -1, axis=0)
    distinct = np.append(np.arange(min(period, stages - 1)), stages - 1)
    link = topology.transfer_link(ranks[distinct], receivers[distinct])
    costs = np.stack([1 / link.bytes_per_s, link.latency_s])
    return costs[:, np.append(np.arange(stages - 1) % period, len(distinct) - 1)]


def _period(topology: Topology, rows: Int[np.ndarray, "groups ranks"]) -> int:
    """Returns after how many rows they repeat on other, equal domains; all rows if they do not.

    What thousands of equal nodes do at once is found from the first of them. The repeated rows must
    fill whole domains alone, so that nobody else uses their networks.
    """
    domain = _equal_domains(topology)
    if domain is None:
        return len(rows)
    ahead = rows[:, 0] - rows[0, 0]
    for period in np.flatnonzero(ahead % domain == 0)[1:2].tolist():
        shift, first = int(ahead[period]), int(rows[:period].min())
        is_alone = first % domain == 0 and int(rows[:period].max()) - first < shift
        if is_alone and np.array_equal(rows[period:], rows[:-period] + shift):
            return period
    return len(rows)


def _equal_domains(topology: Topology) -> int | None:
    """Returns the devices of each domain if all are equal."""
    if len(topology.cluster.nodes) > 1:
        return None
    group = topology.cluster.nodes[0]
    is_whole = group.count % group.nodes_per_domain == 0
    return group.devices * group.nodes_per_domain if is_whole else None


def capacity_bytes_of(topology: Topology, devices: DeviceGrid) -> Float[np.ndarray, " stages"]:
    """Returns the memory of the smallest device of each stage."""
    types = topology.cluster.device_types
    sizes = [types[name].memory_bytes for name in topology.cluster.used_types]
    on_device = np.array(sizes, dtype=float)[topology.device_type]
    return on_device[devices.reshape(len(devices), -1)].min(axis=-1)


def _speed_rank(topology: Topology) -> Int[np.ndarray, " devices"]:
    """Returns 0 for the slowest type of device, 1 for the next, ... by its best peak rate."""
    types = topology.cluster.device_types
    names = topology.cluster.used_types
    peaks = [max(types[name].peak_flops_per_s.values(), default=0.0) for name in names]
    return np.argsort(np.argsort(peaks, kind="stable"))[topology.device_type]


def _types_present(
    topology: Topology, ranks: Int[np.ndarray, "stages ranks"]
) -> Bool[np.ndarray, "stages device_types"]:
    types = np.arange(len(topology.cluster.used_types))
    return np.stack([(topology.device_type[ranks] == t).any(axis=1) for t in types], axis=-1)
