"""One problem, one strategy, one schedule table -> what a step costs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from apss_jax.cost.communication import StageTail, stage_tail, transfer_s
from apss_jax.cost.compute import ChunkTimes, chunk_sums, chunk_times
from apss_jax.cost.memory import StageMemory, stage_memory
from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.simulate import Simulation, StageTimes, simulate
from apss_jax.problem import Problem
from apss_jax.strategy import Strategy

PerStage = Float[jax.Array, " stages"]
PerChunk = Float[jax.Array, "chunks stages"]
Scalar = Float[jax.Array, ""]


class Breakdown(NamedTuple):
    """The step's time on the busiest stage; the parts add up to the step time."""

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
    sums = chunk_sums(problem, strategy)
    times = chunk_times(problem, strategy, sums)
    each_s = jnp.sum(times.forward_s + times.backward_s, axis=0)
    tail = stage_tail(problem, strategy, sums, each_s)
    run = simulate(table, stage_times(problem, strategy, times, tail))
    return StepCost(
        step_time_s=run.step_time_s + problem.step_s,
        breakdown=_breakdown(problem, strategy, times, tail, run),
        forward_s=jnp.sum(times.forward_s, axis=0),
        backward_s=jnp.sum(times.backward_s, axis=0),
        memory=stage_memory(problem, strategy, sums),
        is_exact=run.is_exact,
    )


def strategy_times(problem: Problem, strategy: Strategy) -> StageTimes:
    """Returns what the ops of a strategy take, as `step_cost` simulates them."""
    sums = chunk_sums(problem, strategy)
    times = chunk_times(problem, strategy, sums)
    each_s = jnp.sum(times.forward_s + times.backward_s, axis=0)
    return stage_times(problem, strategy, times, stage_tail(problem, strategy, sums, each_s))


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
    return closed_form_cost(problem, strategy).step_time_s


def closed_form_cost(problem: Problem, strategy: Strategy) -> StepCost:
    """Returns the cost of a strategy in closed form: no schedule is followed.

    Compute and collectives are the slowest stage's, the other stages' times the bubble.
    """
    sums = chunk_sums(problem, strategy)
    times = chunk_times(problem, strategy, sums)
    forward_s, backward_s, comm_s = (jnp.sum(values, axis=0) for values in times)
    each_s = forward_s + backward_s
    tail = stage_tail(problem, strategy, sums, each_s)
    slowest_s, tail_s = jnp.max(each_s), tail.data_comm_s + tail.optimizer_s
    layer_comm_s = strategy.num_micro_batches * _where_largest(comm_s, each_s)
    is_last = strategy.end_unit == jnp.max(strategy.end_unit)
    sent_s = 2.0 * jnp.sum(jnp.where(is_last, 0.0, transfer_s(problem, strategy)))
    optimizer_s = _where_largest(tail.optimizer_s, tail_s)
    breakdown = Breakdown(
        compute=strategy.num_micro_batches * slowest_s - layer_comm_s,
        tensor_comm=layer_comm_s,
        pipeline_bubble=jnp.sum(each_s) - slowest_s,
        pipeline_comm=sent_s,
        data_comm=jnp.max(tail_s) - optimizer_s,
        optimizer=optimizer_s,
        other=problem.step_s,
    )
    memory = stage_memory(problem, strategy, sums)
    step_time_s = sum(breakdown, jnp.zeros(()))
    return StepCost(step_time_s, breakdown, forward_s, backward_s, memory, jnp.array(False))


def _where_largest(values: PerStage, of: PerStage) -> Scalar:
    """Returns the value on the stage where something else is largest; XLA's argmax is slow."""
    return jnp.max(jnp.where(of == jnp.max(of), values, 0.0))


def _breakdown(
    problem: Problem, strategy: Strategy, times: ChunkTimes, tail: StageTail, run: Simulation
) -> Breakdown:
    layer_comm_s = strategy.num_micro_batches * jnp.sum(times.comm_s, axis=0)
    parts = (
        run.compute_s - layer_comm_s,
        layer_comm_s,
        run.bubble_s,
        run.blocked_s + run.transfer_wait_s,
        tail.data_comm_s,
        tail.optimizer_s,
    )
    # The parts add up on every stage; the busiest one tells most, an empty last one only waits.
    on_busiest = jnp.stack(parts, axis=-1)[jnp.argmax(run.compute_s)]
    return Breakdown._make([*jnp.unstack(on_busiest), problem.step_s])
