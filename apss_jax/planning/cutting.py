"""Which units stand on which virtual stage: candidates as instances for partition solvers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from apss_jax.cost.communication import OPTIMIZER_SHARDED_BYTES, OPTIMIZER_WHOLE_BYTES
from apss_jax.cost.schedule import most_in_flight
from apss_jax.partitioning.balanced import balanced_cuts, uniform_cuts
from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.instance import PartitionInstance
from apss_jax.planning.choice import Choice, Offsets
from apss_jax.planning.evening import evened_cuts
from apss_jax.planning.memory_risk import usable_bytes
from apss_jax.planning.placement import Placement
from apss_jax.planning.tables import CostTables
from apss_jax.problem import GATHERED_UNITS, Problem
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layout import Layout
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import COMM_KINDS, UnitTable

PerStageUnit = Float[np.ndarray, "stages units"]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A layout on devices that still needs its cuts."""

    layout: Layout
    placement: Placement
    num_micro_batches: int

    @property
    def num_pieces(self) -> int:
        """Returns how many virtual stages there are."""
        return self.layout.pipeline_parallel * self.layout.virtual_stages


@dataclass(frozen=True, eq=False)
class Cut:
    """A candidate with its cuts, and what they tell before any schedule is followed."""

    choice: Choice
    least_s: float  # no schedule takes less
    excess_bytes: float  # of the fullest stage above what counts as fitting; negative if all fit


@dataclass(frozen=True, eq=False)
class Cutter:
    """Cuts candidates of one search by one solver."""

    cluster: ClusterProfile
    stack: Stack
    problem: Problem
    solver: str

    def cuts(self, candidates: Sequence[Candidate], tables: CostTables) -> list[Cut]:
        """Returns the candidates with their cuts, in their order.

        Where no partition keeps to the memory, it is the best one without that limit, so that the
        shortfall can be told.
        """
        own = [tables.by_setting[candidate.layout.setting] for candidate in candidates]
        instances = [
            self._instance(candidate, table)
            for candidate, table in zip(candidates, own, strict=True)
        ]
        rows = zip(candidates, own, instances, self._solved(instances, own), strict=True)
        return [self._cut(*row) for row in rows]

    def choices(self, candidates: Sequence[Candidate], tables: CostTables) -> list[Choice]:
        """Returns the candidates with their cuts, whether or not they fit."""
        return [cut.choice for cut in self.cuts(candidates, tables)]

    def _cut(
        self,
        candidate: Candidate,
        table: UnitTable,
        instance: PartitionInstance,
        found: Int[np.ndarray, " cuts"],
    ) -> Cut:
        layout, count = candidate.layout, candidate.num_micro_batches
        choice = Choice(layout, candidate.placement, offsets_of(found, table), count)
        needed = stage_bytes(choice, instance.memory_bytes, table, self.problem)
        usable = usable_bytes(candidate.placement.capacity_bytes, self.stack)
        on_types_s = self._on_types_s(candidate.placement, table)
        least_s = least_schedule_s(instance, choice, on_types_s) + self.stack.step_s
        return Cut(choice, least_s, float((needed - usable).max()))

    def evened(self, choice: Choice, tables: CostTables) -> Choice:
        """Returns a choice with cuts as even as its cost allows; other solvers' cuts stay."""
        if self.solver != "exact" or choice.num_pieces == 1:
            return choice
        table = tables.by_setting[choice.layout.setting]
        candidate = Candidate(choice.layout, choice.placement, choice.num_micro_batches)
        cuts = evened_cuts(self._instance(candidate, table), choice.offsets[1:-1] - 1)
        return replace(choice, offsets=offsets_of(cuts, table))

    def _solved(
        self, instances: Sequence[PartitionInstance], tables: Sequence[UnitTable]
    ) -> list[Int[np.ndarray, " cuts"]]:
        pairs = [(table, one.num_stages) for table, one in zip(tables, instances, strict=True)]
        if self.solver == "uniform":
            return [_whole_layers(table, pieces) for table, pieces in pairs]
        if self.solver == "balanced":
            return [_by_parameters(table, pieces) for table, pieces in pairs]
        found = solve_exact_many(instances)
        missing = [i for i, partition in enumerate(found) if partition is None]
        free = solve_exact_many([_unlimited(instances[i]) for i in missing])
        for i, partition in zip(missing, free, strict=True):
            found[i] = partition
        return [partition.cuts for partition in found if partition is not None]

    def _instance(self, candidate: Candidate, table: UnitTable) -> PartitionInstance:
        """Virtual stages form one chain; a stage's chunks share its memory in equal parts."""
        layout, placement = candidate.layout, candidate.placement
        chunks = layout.virtual_stages
        repeated = np.tile(np.arange(layout.pipeline_parallel), chunks)
        layer_s = self._on_types_s(placement, table).max(axis=0)
        sent_s = _sent_s(placement, table, self.stack)
        held_bytes = unit_bytes(layout, candidate.num_micro_batches, table, self.problem)
        free_bytes = free_bytes_of(placement.capacity_bytes, table, self.problem, self.stack)
        return PartitionInstance(
            layer_cost_s=layer_s[repeated],
            boundary_cost_s=sent_s[:, repeated[:-1]],
            gradient_cost_s=self.gradient_s(candidate, table)[repeated],
            memory_bytes=held_bytes,
            capacity_bytes=free_bytes[repeated] / chunks,
            num_micro_batches=candidate.num_micro_batches * chunks,
        )

    def _on_types_s(
        self, placement: Placement, table: UnitTable
    ) -> Float[np.ndarray, "device_types stages units"]:
        """Returns a micro-batch's time of each unit on each stage, by the types it may be on."""
        on_type = table.compute_s.sum(axis=0)
        compute = np.where(placement.has_type[:, :, None], on_type, 0.0).swapaxes(0, 1)
        exposed = np.ones(len(COMM_KINDS))
        exposed[COMM_KINDS.index("context")] = self.stack.context_exposed_fraction
        per_byte = placement.comm_s_per_byte * exposed
        per_call = placement.comm_s_per_call * exposed
        comm = per_byte @ table.comm_bytes.sum(axis=0) + per_call @ table.comm_calls.sum(axis=0)
        return compute + comm

    def gradient_s(self, candidate: Candidate, table: UnitTable) -> PerStageUnit:
        """Returns exposed gradient reduction and optimizer time of each unit on each stage."""
        layout, placement = candidate.layout, candidate.placement
        shards = layout.shards
        reduced = self.stack.reduced_gradient_bytes
        second = reduced if layout.zero_stage == 0 else float(self.problem.weight_bytes)
        exposed = self.stack.exposed_fractions[layout.zero_stage]
        sent_s = exposed * (reduced + second) * placement.gradient_s_per_byte
        sent_s = sent_s + exposed * reduced * placement.replica_s_per_byte
        memory_s = np.where(
            placement.has_type, self.problem.memory_s_per_byte[: placement.has_type.shape[1]], 0.0
        ).max(axis=1)
        owners_s = self.stack.owner_step_s * shards if layout.zero_stage in (1, 2) else 0.0
        total = np.full((len(memory_s), table.num_units), exposed * owners_s)
        owners = (shards, max(shards // layout.expert_parallel, 1))
        for kind, held in enumerate((table.dense_parameters, table.expert_parameters)):
            spread = owners[kind] if layout.zero_stage else 1
            moved = OPTIMIZER_SHARDED_BYTES / spread + OPTIMIZER_WHOLE_BYTES
            steps_s = (owners[kind] - 1) * self.stack.bucket_step_s_per_byte
            rate = sent_s[:, kind] + exposed * (reduced + second) * steps_s + moved * memory_s
            total += rate[:, None] * held
        return total


def offsets_of(cuts: Int[np.ndarray, " cuts"], table: UnitTable) -> Offsets:
    """Returns where the virtual stages between some cuts begin and end."""
    return np.concatenate([[0], cuts + 1, [table.num_units]])


def least_schedule_s(
    instance: PartitionInstance,
    choice: Choice,
    on_types_s: Float[np.ndarray, "device_types stages units"],
) -> float:
    """Returns what every schedule takes at least with some cuts.

    A stage begins when the first micro-batch has passed those before it, runs all of them, and ends
    before the last one has passed back; its own tail follows its own work. Its slowest device is
    not the slowest for every unit, as the instance has it.
    """
    stages, count = choice.layout.pipeline_parallel, choice.num_micro_batches
    repeated = np.tile(on_types_s, (1, choice.layout.virtual_stages, 1))
    piece_s = np.max([_piece_sums(rows, choice.offsets) for rows in repeated], axis=0)
    cuts = np.arange(stages - 1)
    sent_s = instance.boundary_cost_s[choice.offsets[1:stages] - 1, cuts]
    before_s = np.concatenate([[0.0], np.cumsum(piece_s[: stages - 1] + sent_s)])
    work_s = count * piece_s.reshape(-1, stages).sum(axis=0)
    tail_s = _piece_sums(instance.gradient_cost_s, choice.offsets).reshape(-1, stages).sum(axis=0)
    return float(max((before_s + work_s).max(), (work_s + tail_s).max()))


def stage_bytes(
    choice: Choice, each: Float[np.ndarray, "_ units"], table: UnitTable, problem: Problem
) -> Float[np.ndarray, " stages"]:
    """Returns the memory of each stage as the cost model counts it; `each` is `unit_bytes`.

    Its rows are virtual stages.
    """
    layout, starts = choice.layout, choice.offsets[:-1]
    shape = (layout.virtual_stages, layout.pipeline_parallel)
    held = _piece_sums(each, choice.offsets).reshape(shape).sum(axis=0)
    moment = np.maximum.reduceat(table.working_bytes, starts).reshape(shape).max(axis=0)
    if layout.zero_stage == 3 and choice.num_pieces == 1:
        parameters = (table.dense_parameters + table.expert_parameters).sum()
        gathered = GATHERED_UNITS * parameters / table.num_units
        moment = moment + float(problem.weight_bytes) * gathered
    return held + moment + float(problem.reserved_bytes)


def _piece_sums(values: PerStageUnit, offsets: Offsets) -> Float[np.ndarray, " stages"]:
    """Returns for each virtual stage the sum over its units."""
    before = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    rows = np.arange(len(values))
    return before[rows, offsets[1:]] - before[rows, offsets[:-1]]


def unit_bytes(
    layout: Layout, num_micro_batches: int, table: UnitTable, problem: Problem
) -> PerStageUnit:
    """Returns the memory of each unit on each virtual stage: its states, and what is in flight."""
    stages, chunks = layout.pipeline_parallel, layout.virtual_stages
    held = most_in_flight(layout.schedule, stages, num_micro_batches, chunks).T.astype(float)
    states = state_bytes(layout, table, problem, tied=stages * chunks > 1)
    return states + held.reshape(-1, 1) * table.saved_bytes


def free_bytes_of(
    capacity_bytes: Float[np.ndarray, " stages"], table: UnitTable, problem: Problem, stack: Stack
) -> Float[np.ndarray, " stages"]:
    """Returns what stages may hold beside what every one of them needs at some moment."""
    fixed = float(problem.reserved_bytes) + table.working_bytes.max()
    return np.maximum(usable_bytes(capacity_bytes, stack) - fixed, 0.0)


def state_bytes(
    layout: Layout, table: UnitTable, problem: Problem, *, tied: bool
) -> Float[np.ndarray, " units"]:
    """Returns weights, gradients and optimizer of each unit on one device under its ZeRO stage.

    `tied` counts the copy of a tied token table that a head apart from the embedding holds.
    """
    shards = layout.shards
    zero = min(layout.zero_stage, 1 if layout.pipeline_parallel > 1 else 3)
    dense = table.dense_parameters.copy()
    dense[-1] += table.tied_parameters if tied else 0.0
    parts = (
        (float(problem.weight_bytes), 3),
        (float(problem.gradient_bytes), 2),
        (float(problem.optimizer_bytes), 1),
    )

    def held(parameters: np.ndarray, owners: int) -> np.ndarray:
        each = sum(size / (owners if zero >= stage else 1) for size, stage in parts)
        return each * parameters

    experts = max(shards // layout.expert_parallel, 1)
    return held(dense, shards) + held(table.expert_parameters, experts)


def _sent_s(
    placement: Placement, table: UnitTable, stack: Stack
) -> Float[np.ndarray, "boundaries stages"]:
    """Returns the time of both messages over each stage's outgoing link, cut after each unit."""
    moved = table.boundary_bytes[:-1, None] * placement.transfer_s_per_byte
    return 2.0 * (moved + placement.transfer_s_per_call + stack.transfer_latency_s)


def _unlimited(instance: PartitionInstance) -> PartitionInstance:
    """Returns the instance without memory limits: then any split into stages is feasible."""
    return replace(instance, capacity_bytes=np.full_like(instance.capacity_bytes, np.inf))


def _whole_layers(table: UnitTable, pieces: int) -> Int[np.ndarray, " cuts"]:
    """Returns a split that counts layers alone; the ends join the first and the last stage."""
    ends = int(table.has_ends)
    layers = table.num_units - 2 * ends
    if pieces > layers:
        return uniform_cuts(table.num_units, pieces)
    return uniform_cuts(layers, pieces) + ends


def _by_parameters(table: UnitTable, pieces: int) -> Int[np.ndarray, " cuts"]:
    """Returns the split whose largest stage has the fewest parameters."""
    return balanced_cuts(table.dense_parameters + table.expert_parameters, pieces)
