"""When the ops of a plan run: the timeline that a result holds."""

from __future__ import annotations

from typing import Final, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from apss_jax.cost.batched import op_times
from apss_jax.cost.op_table import Pass, ScheduleTable
from apss_jax.cost.schedule import build_table
from apss_jax.cost.simulate import StageTimes
from apss_jax.cost.timeline import timeline
from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import ReadyTable, stack_strategies
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.plan_choice import choice_of
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.detail import StageTimeline, Timeline
from apss_jax.schema.plan import Plan

MOST_LISTED: Final = 2_000  # ops; of longer steps the first and the last half of so many
MOST_OPS: Final = 500_000  # that are simulated; a step of more has no timeline
LETTERS: Final = {Pass.FORWARD: "F", Pass.BACKWARD: "B"}
UPDATE: Final = "U"


class Ops(NamedTuple):
    """Ops of one stage in their order; the last one is its update."""

    letter: list[str]
    micro_batch: Int[np.ndarray, " slots"]
    chunk: Int[np.ndarray, " slots"]
    start_s: Float[np.ndarray, " slots"]
    end_s: Float[np.ndarray, " slots"]


def timeline_of(inputs: Inputs, plan: Plan) -> Timeline | None:
    """Returns when the ops of a legal plan run; None where there are too many to simulate each."""
    passes = 2 * plan.num_micro_batches * plan.virtual_stages * plan.pipeline_parallel
    if passes > MOST_OPS:
        return None
    tables = cost_tables(inputs, [layout_of(plan).setting])
    choice = choice_of(inputs, plan, tables)
    factor = inputs.stack.time_factor
    stages = _stages(choice, tables, factor)
    fixed_s = factor * float(tables.problem.step_s)
    step_s = max(float(ops.end_s[-1]) for ops in stages) + fixed_s
    windows = _windows(stages, step_s)
    return Timeline(
        windows_s=windows,
        num_micro_batches=plan.num_micro_batches,
        step_time_s=step_s,
        stages=tuple(_listed(ops, windows) for ops in stages),
    )


def _stages(choice: Choice, tables: CostTables, factor: float) -> list[Ops]:
    """Returns the ops of every stage, in the seconds that documents tell."""
    table = build_table(*choice.table_key)
    ready = ReadyTable.of(build_table, choice.table_key)
    problem = jax.device_put(tables.problem)
    strategies = stack_strategies(tables.problem, tables.index, [choice], ready)
    times = jax.tree.map(lambda v: np.asarray(v)[0], op_times(problem, strategies))
    run = timeline(ready.on_device, times)
    spans = factor * np.stack([run.start_s, run.end_s]).astype(float)
    tails_s = factor * np.asarray(times.tail_s, float)
    return [
        _ops(table, stage, spans[:, : table.num_slots, stage], tails_s[stage], blocked)
        for stage, blocked in enumerate((factor * _blocked_s(table, times)).tolist())
    ]


def _blocked_s(table: ScheduleTable, times: StageTimes) -> Float[np.ndarray, " stages"]:
    """Returns for how long each stage sends behind its last op, the backward pass of chunk 0."""
    sent_s = np.asarray(times.backward_transfer_s, float)[0, : table.num_stages].copy()
    sent_s[0] = 0.0  # nobody stands before it
    return float(times.blocking_fraction) * sent_s


def _ops(
    table: ScheduleTable,
    stage: int,
    spans: Float[np.ndarray, "2 slots"],
    tail_s: float,
    blocked_s: float,
) -> Ops:
    busy = np.flatnonzero(table.kind[: table.num_slots, stage] != Pass.IDLE)
    start_s, end_s = spans[:, busy]
    done_s = end_s[-1] + blocked_s
    micro_batch, chunk = table.micro_batch[busy, stage], table.chunk[busy, stage]
    return Ops(
        [*(LETTERS[Pass(kind)] for kind in table.kind[busy, stage].tolist()), UPDATE],
        np.append(micro_batch, table.num_micro_batches - 1),
        np.append(chunk, 0),
        np.append(start_s, done_s),
        np.append(end_s, done_s + tail_s),
    )


def _windows(stages: list[Ops], step_s: float) -> tuple[tuple[float, float], ...]:
    """Returns the whole step, or a window at either end that holds as many ops as are listed."""
    start_s = np.sort(np.concatenate([ops.start_s for ops in stages]))
    end_s = np.sort(np.concatenate([ops.end_s for ops in stages]))
    if len(start_s) <= MOST_LISTED:
        return ((0.0, step_s),)
    half = MOST_LISTED // 2
    return ((0.0, float(start_s[half])), (float(end_s[-half - 1]), step_s))


def _listed(ops: Ops, windows: tuple[tuple[float, float], ...]) -> StageTimeline:
    """Returns the ops that begin in the first window or end in the last one."""
    kept = np.flatnonzero((ops.start_s < windows[0][1]) | (ops.end_s > windows[-1][0]))
    return StageTimeline(
        passes="".join(ops.letter[i] for i in kept),
        micro_batches=tuple(ops.micro_batch[kept].tolist()),
        chunks=tuple(ops.chunk[kept].tolist()),
        start_s=tuple(ops.start_s[kept].tolist()),
        end_s=tuple(ops.end_s[kept].tolist()),
    )
