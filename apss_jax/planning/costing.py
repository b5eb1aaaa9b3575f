"""Costs of many choices: grouped by schedule table and padded to few sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise

import jax
import numpy as np
from jaxtyping import Float

from apss_jax.cost.batched import kept_step_costs
from apss_jax.cost.op_table import ScheduleTable, pad_table
from apss_jax.cost.schedule import build_folded_table, build_table, most_in_flight
from apss_jax.cost.step import StepCost
from apss_jax.planning.choice import Choice
from apss_jax.planning.placement import Placement
from apss_jax.problem import Problem, padded_size
from apss_jax.schema.tables import Setting
from apss_jax.strategy import Strategy

# Padded sizes: each combination that occurs is compiled once per machine, so there are few. Plans
# without virtual stages keep their one chunk: padded to 32, a cost takes ten times as long or more.
STAGE_SIZES = (16, 64, 128)
CHUNK_SIZES = (1, 32, 128)
SLOT_SIZES = (2560, 18432, 147456)  # powers of 2 and, for starting and ending, a few stages' worth
BATCH_SIZES = (16, 256)  # the larger one for groups that fill a good part of it
NOISE_FRACTION = 1e-6  # of the step: what float32 leaves of a part that is zero


BuildFn = Callable[[str, int, int, int], ScheduleTable]
"""Returns the table of a schedule for stages, micro-batches and chunks."""


@dataclass(frozen=True, eq=False)
class Costs:
    """The cost of each choice, in float64 on the host; stages padded with 0."""

    step_time_s: Float[np.ndarray, " batch"]
    breakdown_s: Float[np.ndarray, "batch time_parts"]  # in the order of `cost.step.Breakdown`
    forward_s: Float[np.ndarray, "batch stages"]
    backward_s: Float[np.ndarray, "batch stages"]
    memory_bytes: Float[np.ndarray, "batch stages memory_parts"]  # in the order of `StageMemory`

    def rows(self, chosen: np.ndarray) -> Costs:
        """Returns some of the rows."""
        return Costs(*(getattr(self, f.name)[chosen] for f in fields(self)))


def cost_choices(
    problem: Problem, settings: Mapping[Setting, int], choices: Sequence[Choice]
) -> Costs:
    """Returns the simulated cost of every choice, in their order.

    Folded tables serve where their answer is exact; the rest is simulated in full.
    """
    problem = jax.device_put(problem)
    parts: list[tuple[np.ndarray, Costs]] = []
    batches = list(_batches(choices))
    # All are begun before any is waited for; while a program is read or compiled for one, the next
    # is put together.
    with ThreadPoolExecutor(max_workers=2) as pool:
        begun = pool.map(lambda one: _begin(problem, settings, one[1], build_folded_table), batches)
    for (indices, batch), cost in zip(batches, begun, strict=True):
        parts.append((indices, _on_host(cost, len(batch))))
        inexact = np.flatnonzero(~np.asarray(cost.is_exact)[: len(batch)])
        if inexact.size:
            again = [batch[i] for i in inexact]
            full = _begin(problem, settings, again, build_table)
            parts.append((indices[inexact], _on_host(full, len(again))))
    return _merged(parts, len(choices))


def _batches(choices: Sequence[Choice]) -> Iterator[tuple[np.ndarray, list[Choice]]]:
    groups: dict[tuple[str, int, int, int], list[int]] = {}
    for i, choice in enumerate(choices):
        groups.setdefault(choice.table_key, []).append(i)
    for members in groups.values():
        size = BATCH_SIZES[len(members) > BATCH_SIZES[1] // 4]
        for start in range(0, len(members), size):
            part = members[start : start + size]
            yield np.array(part), [choices[i] for i in part]


def _begin(
    problem: Problem,
    settings: Mapping[Setting, int],
    batch: Sequence[Choice],
    build: BuildFn,
) -> StepCost:
    ready = _ready_table(build, batch[0].table_key)
    strategies = stack_strategies(problem, settings, batch, ready)
    return kept_step_costs(problem, strategies, ready.on_device)


@dataclass(frozen=True, eq=False)
class ReadyTable:
    """A schedule table padded to one of few sizes, and what memory needs of it."""

    on_device: ScheduleTable
    num_chunks: int
    in_flight: Float[np.ndarray, "chunks stages"]  # padded

    @staticmethod
    def of(build: BuildFn, key: tuple[str, int, int, int]) -> ReadyTable:
        """Returns the table of a schedule made ready."""
        table, held = build(*key), most_in_flight(*key).T.astype(np.float32)
        slots, stages = table.kind.shape
        wide = padded_size(stages, STAGE_SIZES)
        chunks = padded_size(table.num_chunks, CHUNK_SIZES)
        padded = pad_table(table, padded_size(slots, SLOT_SIZES), wide)
        in_flight = _padded(held[None], chunks, wide)[0]
        return ReadyTable(jax.device_put(padded), table.num_chunks, in_flight)


@lru_cache(maxsize=64)
def _ready_table(build: BuildFn, key: tuple[str, int, int, int]) -> ReadyTable:
    return ReadyTable.of(build, key)


def stack_strategies(
    problem: Problem,
    settings: Mapping[Setting, int],
    batch: Sequence[Choice],
    table: ReadyTable,
) -> Strategy:
    """Returns the choices as one batch of strategies; the last one fills the padding."""
    chunks, stages = table.in_flight.shape
    types = problem.memory_s_per_byte.shape[0]
    lanes = padded_size(len(batch), BATCH_SIZES)
    filled = [*batch, *[batch[-1]] * (lanes - len(batch))]
    ranges = [choice.unit_ranges for choice in filled]
    first = _padded(np.stack([r[0] for r in ranges]), chunks, stages)
    end = _padded(np.stack([r[1] for r in ranges]), chunks, stages)
    links = _Links.of([choice.placement for choice in filled], stages, types)
    layouts = [choice.layout for choice in filled]
    shards = np.array([one.shards for one in layouts])
    experts = np.array([one.expert_parallel for one in layouts])
    used = np.arange(chunks)[:, None] < table.num_chunks
    return Strategy(
        setting=np.array([settings[one.setting] for one in layouts], np.int32),
        first_unit=first.astype(np.int32),
        end_unit=end.astype(np.int32),
        has_type=links.has_type,
        comm_s_per_byte=links.comm_s_per_byte,
        comm_s_per_call=links.comm_s_per_call,
        gradient_s_per_byte=links.gradient_s_per_byte,
        gradient_s_per_call=links.gradient_s_per_call,
        replica_s_per_byte=links.replica_s_per_byte,
        replica_s_per_call=links.replica_s_per_call,
        transfer_s_per_byte=links.transfer_s_per_byte[:, None, :] * used,
        transfer_s_per_call=links.transfer_s_per_call[:, None, :] * used,
        in_flight=np.broadcast_to(table.in_flight, first.shape),
        num_micro_batches=np.array([c.num_micro_batches for c in filled], np.float32),
        shards=shards.astype(np.float32),
        expert_shards=(shards / experts).astype(np.float32),
        zero_stage=np.array([one.zero_stage for one in layouts], np.int32),
        ends_apart=np.array([one.pipeline_parallel > 1 for one in layouts]),
    )


@dataclass(frozen=True, eq=False)
class _Links:
    """The link figures of many placements, stacked and padded."""

    has_type: np.ndarray
    comm_s_per_byte: np.ndarray
    comm_s_per_call: np.ndarray
    gradient_s_per_byte: np.ndarray
    gradient_s_per_call: np.ndarray
    replica_s_per_byte: np.ndarray
    replica_s_per_call: np.ndarray
    transfer_s_per_byte: np.ndarray
    transfer_s_per_call: np.ndarray

    @staticmethod
    def of(placements: Sequence[Placement], stages: int, types: int) -> _Links:
        distinct = {id(p): p for p in placements}
        position = {key: i for i, key in enumerate(distinct)}
        index = [position[id(p)] for p in placements]

        def stacked(name: str) -> np.ndarray:
            rows = np.stack([getattr(p, name) for p in distinct.values()])
            widths = [(0, 0), (0, stages - rows.shape[1])] + [(0, 0)] * (rows.ndim - 2)
            if name == "has_type":
                widths[2] = (0, types - rows.shape[2])
            dtype = bool if name == "has_type" else np.float32
            return np.pad(rows, widths).astype(dtype)[index]

        return _Links(*(stacked(f.name) for f in fields(_Links)))


def _padded(values: np.ndarray, chunks: int, stages: int) -> np.ndarray:
    grow = ((0, 0), (0, chunks - values.shape[1]), (0, stages - values.shape[2]))
    return np.pad(values, grow)


def _on_host(cost: StepCost, size: int) -> Costs:
    """Returns the real rows in float64, the step time as the sum of its parts."""
    cost = jax.tree.map(np.asarray, cost)
    breakdown = np.stack(cost.breakdown, axis=-1)[:size].astype(float)
    breakdown[breakdown < NOISE_FRACTION * breakdown.sum(axis=-1, keepdims=True)] = 0.0
    return Costs(
        step_time_s=breakdown.sum(axis=-1),
        breakdown_s=breakdown,
        forward_s=np.asarray(cost.forward_s)[:size].astype(float),
        backward_s=np.asarray(cost.backward_s)[:size].astype(float),
        memory_bytes=np.stack(cost.memory, axis=-1)[:size].astype(float),
    )


def _merged(parts: Sequence[tuple[np.ndarray, Costs]], size: int) -> Costs:
    """Returns all rows in order; later parts replace earlier ones."""
    stages = max((costs.forward_s.shape[1] for _, costs in parts), default=1)

    def column(name: str) -> np.ndarray:
        rows = None
        for indices, costs in parts:
            values = getattr(costs, name)
            if values.ndim > 1 and name not in ("breakdown_s",):
                grow = [(0, 0), (0, stages - values.shape[1])] + [(0, 0)] * (values.ndim - 2)
                values = np.pad(values, grow)
            if rows is None:
                rows = np.zeros((size, *values.shape[1:]))
            rows[indices] = values
        return rows if rows is not None else np.zeros((0,))

    return Costs(*(column(f.name) for f in fields(Costs)))


def joined(parts: Sequence[Costs]) -> Costs:
    """Returns the rows of several costs, one after the other."""
    starts = np.cumsum([0, *(len(part.step_time_s) for part in parts)])
    places = [np.arange(a, b) for a, b in pairwise(starts.tolist())]
    return _merged(list(zip(places, parts, strict=True)), int(starts[-1]))
