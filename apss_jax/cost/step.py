"""One problem, one strategy, one schedule table -> what a step costs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from apss_jax.cost.communication import StageTail, stage_tail, transfer_s
from apss_jax.cost.compute import ChunkTimes, chunk_times
from apss_jax.cost.memory import StageMemory, stage_memory
from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.simulate import Simulation, StageTimes, simulate
from apss_jax.problem import Problem
from apss_jax.strategy import Strategy

PerStage = Float[jax.Array, " stages"]
PerChunk = Float[jax.Array, "chunks stages"]
Scalar = Float[jax.Array, ""]


class Breakdown(NamedTuple):
    """The step's time on the stage that ends last; the parts add up to the step time."""

    compute: Scalar
    tensor_comm: Scalar
    pipeline_bubble: Scalar
    pipeline_comm: Scalar
    data_comm: Scalar
    optimizer: Scalar
    other: Scalar


class StepCost(NamedTuple):
    """What one step costs, and on which stage what."""

    step_time_s: Scalar
    breakdown: Breakdown
    forward_s: PerStage  # one micro-batch through all chunks, communication included
    backward_s: PerStage
    memory: StageMemory
    is_exact: Bool[jax.Array, ""]  # whether a folded schedule table stood for the full one


def step_cost(problem: Problem, strategy: Strategy, table: ScheduleTable) -> StepCost:
    """Returns the simulated cost of a strategy."""
    times = chunk_times(problem, strategy)
    tail = stage_tail(problem, strategy, jnp.sum(times.forward_s + times.backward_s, axis=0))
    run = simulate(table, stage_times(problem, strategy, times, tail))
    return StepCost(
        step_time_s=run.step_time_s + problem.step_s,
        breakdown=_breakdown(problem, strategy, times, tail, run),
        forward_s=jnp.sum(times.forward_s, axis=0),
        backward_s=jnp.sum(times.backward_s, axis=0),
        memory=stage_memory(problem, strategy),
        is_exact=run.is_exact,
    )


def stage_times(
    problem: Problem, strategy: Strategy, times: ChunkTimes, tail: StageTail
) -> StageTimes:
    """Returns what the simulator needs; gradients travel back over the link activations came by."""
    sent_s = transfer_s(problem, strategy)
    return StageTimes(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        forward_transfer_s=sent_s,
        backward_transfer_s=_from_previous(sent_s, strategy),
        tail_s=tail.data_comm_s + tail.optimizer_s,
        blocking_fraction=problem.transfer_blocking_fraction,
    )


def _from_previous(values: PerChunk, strategy: Strategy) -> PerChunk:
    """Returns for each virtual stage the value of the one before it."""
    used = jnp.any(strategy.end_unit > strategy.first_unit, axis=0)
    last_stage = jnp.maximum(jnp.sum(used) - 1, 0)
    of_last = jnp.roll(values[:, last_stage], 1)
    return jnp.roll(values, 1, axis=1).at[:, 0].set(of_last)


def closed_form_s(problem: Problem, strategy: Strategy) -> Scalar:
    """Returns (micro-batches - 1) x slowest stage + one pass through all + the longest tail.

    Blind to the order of stages; exact solvers minimise it and searches prune by it.
    """
    times = chunk_times(problem, strategy)
    each = jnp.sum(times.forward_s + times.backward_s, axis=0)
    tail = stage_tail(problem, strategy, each)
    sent = 2.0 * jnp.sum(transfer_s(problem, strategy))
    steady = (strategy.num_micro_batches - 1.0) * jnp.max(each)
    last = jnp.max(tail.data_comm_s + tail.optimizer_s)
    return steady + jnp.sum(each) + sent + last + problem.step_s


def _breakdown(
    problem: Problem, strategy: Strategy, times: ChunkTimes, tail: StageTail, run: Simulation
) -> Breakdown:
    stage = run.critical_stage
    layer_comm = strategy.num_micro_batches * jnp.sum(times.comm_s, axis=0)[stage]
    return Breakdown(
        compute=run.compute_s[stage] - layer_comm,
        tensor_comm=layer_comm,
        pipeline_bubble=run.bubble_s[stage],
        pipeline_comm=run.blocked_s[stage] + run.transfer_wait_s[stage],
        data_comm=tail.data_comm_s[stage],
        optimizer=tail.optimizer_s[stage],
        other=problem.step_s,
    )
