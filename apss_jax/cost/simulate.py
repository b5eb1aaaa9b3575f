"""Time of one step under any op table: finish times propagated slot by slot (max-plus).

A stage runs its ops one after the other, in the table's order. An op starts when its stage is free
and its message is there. A message leaves when its op is done and the link from its stage, one for
each direction, has delivered the message before; a part of its transfer blocks the sender too.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Bool, Float, Int

from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.slots import (
    StageTimes,
    State,
    initial_state,
    make_slots,
    run_slot,
    without_unsent,
)

__all__ = ["Simulation", "StageTimes", "round_time", "simulate"]

# Share of the time so far by which two states of a settled schedule may differ, by bytes of dtype.
_SETTLED_FRACTION = {4: 1e-6, 8: 1e-12}

# Plans x stages that run together: 16 KiB for each quantity, so that all stay in a core's cache.
_PLAN_STAGES = 4096


class Simulation(NamedTuple):
    """The step and where it goes: on each stage the five parts add up to `step_time_s`."""

    step_time_s: Float[jax.Array, "*batch"]
    critical_stage: Int[jax.Array, "*batch"]  # the stage that finishes last
    compute_s: Float[jax.Array, "stages *batch"]
    blocked_s: Float[jax.Array, "stages *batch"]  # sending, in the share that blocks
    transfer_wait_s: Float[jax.Array, "stages *batch"]  # idle while the awaited message travels
    bubble_s: Float[jax.Array, "stages *batch"]  # idle otherwise, until the last stage finishes
    tail_s: Float[jax.Array, "stages *batch"]
    is_exact: Bool[jax.Array, "*batch"]  # False: the repeated rows had not settled


def simulate(table: ScheduleTable, times: StageTimes) -> Simulation:
    """Returns the simulated step of one plan, in the dtype of its times.

    Under `vmap` with a shared table the plans become the last, fastest axis of every array; with
    one table for each plan they run one after the other.

    Where the table stands for repeated rows, their times are added without running them. That is
    exact when the state after the rows is the state before them, all times later by one constant:
    a slot only adds to times and takes maxima of them, and both commute with adding a constant to
    every time, so each further copy adds that constant again, and so it does to all rows that
    follow. The state is when each stage and link is free and when the messages under way arrive.
    `is_exact` says whether it did repeat; a start-up that is still fading, such as a queue that
    builds up slowly before the slowest stage, leaves a state that does not, and the plan must be
    simulated with the full table.
    """
    plan = jax.tree.map(lambda values: jnp.asarray(values)[..., None], times)
    return jax.tree.map(lambda values: values[..., 0], _simulate_lanes(table, plan))


@custom_vmap
def _simulate_lanes(table: ScheduleTable, times: StageTimes) -> Simulation:
    """Returns the simulation of many plans: the last axis of all arrays."""
    times = without_unsent(table, times)
    slots = make_slots(table, times)

    def run(state: State, rows: tuple[jax.Array, jax.Array]) -> tuple[State, State]:
        state = lax.fori_loop(*rows, lambda slot, state: run_slot(slots, slot, state)[0], state)
        return state, state

    bounds = jnp.asarray([0, table.repeat_start, table.repeat_stop, table.num_slots], jnp.int32)
    _, states = lax.scan(run, initial_state(table, times), (bounds[:-1], bounds[1:]))
    before, after, last = (jax.tree.map(lambda values, i=i: values[i], states) for i in range(3))
    round_s, is_exact = round_time(table, before, after)
    waited_s = after.transfer_wait_s - before.transfer_wait_s
    last = last._replace(
        free_s=last.free_s + table.num_repeats * round_s[None],
        transfer_wait_s=last.transfer_wait_s + table.num_repeats * waited_s,
    )
    return _simulation(table, times, last, is_exact)


@_simulate_lanes.def_vmap
def _simulate_more_lanes(
    axis_size: int,
    is_batched: Sequence[Any],  # whether each leaf of the arguments has the new axis
    table: ScheduleTable,
    times: StageTimes,
) -> tuple[Simulation, Simulation]:
    """Makes lanes of the plans of a `vmap`, so that loops run over contiguous plans."""

    def batched(values: jax.Array, has_axis: bool) -> jax.Array:
        values = jnp.asarray(values)
        return values if has_axis else jnp.broadcast_to(values, (axis_size, *values.shape))

    times = jax.tree.map(batched, times, is_batched[1])
    part = gcd(axis_size, max(1, _PLAN_STAGES // times.tail_s[0].size))
    if any(jax.tree.leaves(is_batched[0])):
        table = jax.tree.map(batched, table, is_batched[0])
        result = lax.map(lambda plan: _simulate_lanes(*plan), (table, times))
    elif part < axis_size:
        parts = jax.tree.map(lambda values: values.reshape(-1, part, *values.shape[1:]), times)
        result = lax.map(lambda part: jax.vmap(_simulate_lanes, (None, 0))(table, part), parts)
        result = jax.tree.map(lambda values: values.reshape(-1, *values.shape[2:]), result)
    else:
        result = _simulate_lanes(table, jax.tree.map(_to_lanes, times))
        result = jax.tree.map(lambda values: _from_lanes(values, axis_size), result)
    return result, jax.tree.map(lambda _: True, result)


def _to_lanes(values: jax.Array) -> jax.Array:
    values = jnp.moveaxis(values, 0, -2)
    return values.reshape(*values.shape[:-2], -1)


def _from_lanes(values: jax.Array, axis_size: int) -> jax.Array:
    return jnp.moveaxis(values.reshape(*values.shape[:-1], axis_size, -1), -2, 0)


def round_time(
    table: ScheduleTable, before: State, after: State
) -> tuple[Float[jax.Array, "batch"], Bool[jax.Array, "batch"]]:
    """Returns the time between two states one round apart, and whether all else is the same."""
    is_used = jnp.arange(before.free_s.shape[0]) < table.num_stages
    round_s = after.free_s[0] - before.free_s[0]
    # A slot's row in the arrivals moves on with the slots of a round.
    arrived_s = jnp.roll(before.arrival_s[:-1], table.repeat_stop - table.repeat_start, axis=0)
    pairs = (
        (is_used, before.free_s, after.free_s),
        (is_used, before.forward_link_free_s, after.forward_link_free_s),
        (is_used, before.backward_link_free_s, after.backward_link_free_s),
        (jnp.asarray(table.is_carried), arrived_s, after.arrival_s[:-1]),
    )
    tolerance_s = _SETTLED_FRACTION[round_s.dtype.itemsize] * after.free_s.max(axis=0)
    is_exact = jnp.ones_like(round_s, bool)
    for mask, earlier_s, later_s in pairs:
        of_batch = (*(1 for _ in mask.shape), -1)
        drift_s = jnp.abs(later_s - earlier_s - round_s.reshape(of_batch))
        is_same = (drift_s <= tolerance_s.reshape(of_batch)) | ~mask[..., None]
        is_exact &= is_same.all(axis=tuple(range(mask.ndim)))
    return round_s, is_exact


def _simulation(
    table: ScheduleTable, times: StageTimes, last: State, is_exact: Bool[jax.Array, "batch"]
) -> Simulation:
    finish_s = last.free_s + times.tail_s
    step_time_s = finish_s.max(axis=0)
    compute_s = table.num_micro_batches * (times.forward_s + times.backward_s).sum(axis=0)
    sent_s = (times.forward_transfer_s + times.backward_transfer_s).sum(axis=0)
    blocked_s = table.num_micro_batches * times.blocking_fraction[None] * sent_s
    used_s = compute_s + blocked_s + last.transfer_wait_s + times.tail_s
    is_used = (jnp.arange(used_s.shape[0]) < table.num_stages)[:, None]
    return Simulation(
        step_time_s=step_time_s,
        critical_stage=finish_s.argmax(axis=0),
        compute_s=compute_s,
        blocked_s=blocked_s,
        transfer_wait_s=last.transfer_wait_s,
        bubble_s=jnp.where(is_used, jnp.maximum(step_time_s[None] - used_s, 0), 0),
        tail_s=times.tail_s,
        is_exact=is_exact,
    )
