"""Layouts as problems of solvers by the simulated step: on devices, and with devices open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from apss_jax.cost.schedule import most_in_flight
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.pipeline import PipelineInstance
from apss_jax.planning.cutting import Candidate, Cutter, free_bytes_of, state_bytes
from apss_jax.planning.placement import DeviceGrid, Placement, place, tensor_groups
from apss_jax.schema.layout import Layout
from apss_jax.schema.tables import COMM_KINDS, UnitTable
from apss_jax.schema.topology import Topology

Ranks = Int[np.ndarray, " ranks"]

Block = Int[np.ndarray, "_ data_ranks context_ranks tensor_ranks"]

MAX_TYPES = 6
"""Kinds of nodes for which orders are looked for: their sequences are tried one by one."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The devices that could be a stage, for each kind of node; kinds without any are left out."""

    of_type: tuple[Block, ...]

    @staticmethod
    def of(topology: Topology, layout: Layout) -> Blocks:
        """Returns whole stages of one kind of node, neighbouring nodes first."""
        found = []
        shape = (layout.data_parallel, layout.context_parallel, layout.tensor_parallel)
        for kind in np.unique(topology.group):
            devices = np.flatnonzero(topology.group == kind)
            groups = tensor_groups(topology, devices, layout.tensor_parallel)
            count = len(groups) // (shape[0] * shape[1])
            if count:
                found.append(groups[: count * shape[0] * shape[1]].reshape(count, *shape))
        return Blocks(tuple(found))

    @property
    def num_stages(self) -> int:
        """Returns how many stages all of them could be."""
        return sum(len(own) for own in self.of_type)

    def placed(self, order: Int[np.ndarray, " stages"]) -> DeviceGrid:
        """Returns the devices of each stage: those of its type, in turn."""
        used = [0] * len(self.of_type)
        stages = []
        for kind in order.tolist():
            stages.append(self.of_type[kind][used[kind]])
            used[kind] += 1
        return np.stack(stages)

    def node_stages(self, topology: Topology) -> list[int]:
        """Returns how many stages of each type one domain holds."""
        found = []
        for blocks in self.of_type:
            domains = topology.domain[blocks.reshape(len(blocks), -1)]
            inside = (domains == domains[0, 0]).all(axis=1)
            found.append(max(int(inside.sum()), 1))
        return found


def pipeline_of(cutter: Cutter, candidate: Candidate, table: UnitTable) -> PipelineInstance:
    """Returns a placed layout as a pipeline; its schedule is 1F1B, interleaved or not."""
    layout, placed = candidate.layout, candidate.placement
    stages, chunks = layout.pipeline_parallel, layout.virtual_stages
    repeated = np.tile(np.arange(stages), chunks)
    forward_s, backward_s = passes_s(cutter, placed, table)
    per_call = placed.transfer_s_per_call + cutter.stack.transfer_latency_s
    sent_s = table.boundary_bytes[:-1, None] * placed.transfer_s_per_byte + per_call
    held = most_in_flight(layout.schedule, stages, candidate.num_micro_batches, chunks)
    states = state_bytes(layout, table, cutter.problem, tied=stages * chunks > 1)
    free = free_bytes_of(placed.capacity_bytes, table, cutter.problem, cutter.stack)
    return PipelineInstance(
        forward_s=forward_s[repeated],
        backward_s=backward_s[repeated],
        transfer_s=sent_s[:, repeated[:-1]],
        gradient_s=cutter.gradient_s(candidate, table)[repeated],
        state_bytes=states,
        saved_bytes=table.saved_bytes.astype(float),
        in_flight=held.T.reshape(-1).astype(np.int64),
        capacity_bytes=free,
        num_micro_batches=candidate.num_micro_batches,
        virtual_stages=chunks,
        blocking_fraction=cutter.stack.transfer_blocking_fraction,
    )


def joint_of(
    cutter: Cutter, topology: Topology, candidate: Candidate, table: UnitTable, blocks: Blocks
) -> JointInstance:
    """Returns a layout whose stages may be on any blocks of devices; one chunk for each stage."""
    layout = candidate.layout
    first = np.stack([own[0] for own in blocks.of_type])
    placed = place(topology, first, layout.expert_parallel)
    each = Candidate(layout, placed, candidate.num_micro_batches)
    forward_s, backward_s = passes_s(cutter, placed, table)
    node_stages = blocks.node_stages(topology)
    link, near = _links(topology, blocks, node_stages, cutter.stack.transfer_latency_s)
    free = free_bytes_of(placed.capacity_bytes, table, cutter.problem, cutter.stack)
    return JointInstance(
        type_forward_s=forward_s,
        type_backward_s=backward_s,
        type_gradient_s=cutter.gradient_s(each, table),
        counts=np.array([len(own) for own in blocks.of_type], np.int64),
        node_stages=np.array(node_stages, np.int64),
        link_s_per_byte=link[0],
        link_s_per_call=link[1],
        node_s_per_byte=near[0],
        node_s_per_call=near[1],
        boundary_bytes=table.boundary_bytes[:-1].astype(float),
        state_bytes=state_bytes(layout, table, cutter.problem, tied=layout.pipeline_parallel > 1),
        saved_bytes=table.saved_bytes.astype(float),
        capacity_bytes=free,
        num_micro_batches=candidate.num_micro_batches,
        num_stages=layout.pipeline_parallel,
        blocking_fraction=cutter.stack.transfer_blocking_fraction,
    )


def passes_s(
    cutter: Cutter, placed: Placement, table: UnitTable
) -> Float[np.ndarray, "passes stages units"]:
    """Returns a micro-batch's forward and backward time of each unit on each stage."""
    on_type = np.where(placed.has_type[None, :, :, None], table.compute_s[:, None], 0.0)
    exposed = np.ones(len(COMM_KINDS))
    exposed[COMM_KINDS.index("context")] = cutter.stack.context_exposed_fraction
    latency_s = float(cutter.problem.collective_latency_s)
    calls_s = np.where(placed.comm_s_per_byte > 0, placed.comm_s_per_call + latency_s, 0.0)
    moved = (placed.comm_s_per_byte * exposed) @ table.comm_bytes
    called = (calls_s * exposed) @ table.comm_calls
    return on_type.max(axis=2) + moved + called


def _links(
    topology: Topology, blocks: Blocks, node_stages: list[int], latency_s: float
) -> tuple[Float[np.ndarray, "2 device_types device_types"], Float[np.ndarray, "2 device_types"]]:
    """Returns seconds per byte and call between types, and inside a node of each."""
    ranks = [own.reshape(len(own), -1) for own in blocks.of_type]
    count = len(ranks)
    far, near = np.zeros((2, count, count)), np.zeros((2, count))

    def cost(sender: Ranks, receiver: Ranks) -> Float[np.ndarray, " 2"]:
        link = topology.transfer_link(sender[None], receiver[None])
        return np.array([1 / link.bytes_per_s[0], link.latency_s[0] + latency_s])

    for here, own in enumerate(ranks):
        for there, other in enumerate(ranks):
            next_node = node_stages[here] if here == there else 0
            if next_node < len(other):
                far[:, here, there] = cost(own[0], other[next_node])
        if node_stages[here] > 1:
            near[:, here] = cost(own[0], own[1])
    return far, near
