"""One slot of an op table: every stage runs its op, sends its message and is free again."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from apss_jax.cost.op_table import Pass, ScheduleTable


class StageTimes(NamedTuple):
    """What the ops of one plan take; `simulate` adds a last axis, many plans, to run them.

    Entries of padded stages and chunks, and transfers of messages that nobody awaits, are ignored.
    """

    forward_s: Float[jax.Array, "chunks stages *batch"]  # one micro-batch through one chunk
    backward_s: Float[jax.Array, "chunks stages *batch"]
    forward_transfer_s: Float[jax.Array, "chunks stages *batch"]  # of the message it sends
    backward_transfer_s: Float[jax.Array, "chunks stages *batch"]
    tail_s: Float[jax.Array, "stages *batch"]  # after a stage's last op: gradients, optimizer
    blocking_fraction: Float[jax.Array, "*batch"]  # of a transfer, in which its sender waits


class Slots(NamedTuple):
    """A table and its times as the loop over slots reads them.

    `op` picks a row of `op_times_s`: forward chunks, backward chunks, idle. Its three columns are
    the op's duration, the transfer of the message it awaits and of the one it sends.
    """

    is_forward: Bool[jax.Array, "slots stages 1"]
    op: Int[jax.Array, "slots stages"]
    source_row: Int[jax.Array, "slots stages"]  # of the awaited message in `State.arrival_s`
    source_stage: Int[jax.Array, "slots stages"]
    op_times_s: Float[jax.Array, "_ stages 3 batch"]
    blocking_fraction: Float[jax.Array, "batch"]


class State(NamedTuple):
    """When everything is free, and when the latest messages arrive."""

    free_s: Float[jax.Array, "stages batch"]
    forward_link_free_s: Float[jax.Array, "stages batch"]
    backward_link_free_s: Float[jax.Array, "stages batch"]
    transfer_wait_s: Float[jax.Array, "stages batch"]  # so far
    arrival_s: Float[jax.Array, "_ stages batch"]  # last row, always 0: no message awaited


class Span(NamedTuple):
    """When the op of each stage ran."""

    start_s: Float[jax.Array, "stages batch"]
    end_s: Float[jax.Array, "stages batch"]


def without_unsent(table: ScheduleTable, times: StageTimes) -> StageTimes:
    """Returns the times with 0 for padding and for transfers that do not take place.

    Those are after the last virtual stage, before the first, and within a single stage.
    """
    virtual_stage, is_used = _virtual_stages(table, *times.forward_s.shape[:2])
    last = table.num_chunks * table.num_stages - 1
    is_sent = is_used & (table.num_stages > 1)

    def keep(mask: Bool[jax.Array, "*chunks stages"], values_s: jax.Array) -> jax.Array:
        return jnp.where(mask[..., None], values_s, 0)

    return times._replace(
        forward_s=keep(is_used, times.forward_s),
        backward_s=keep(is_used, times.backward_s),
        forward_transfer_s=keep(is_sent & (virtual_stage != last), times.forward_transfer_s),
        backward_transfer_s=keep(is_sent & (virtual_stage != 0), times.backward_transfer_s),
        tail_s=keep(jnp.arange(times.tail_s.shape[0]) < table.num_stages, times.tail_s),
    )


def make_slots(table: ScheduleTable, times: StageTimes) -> Slots:
    """Returns the slots of a table; `times` come from `without_unsent`."""
    num_chunks = times.forward_s.shape[0]
    is_forward = table.kind == Pass.FORWARD
    op = jnp.where(is_forward, table.chunk, num_chunks + table.chunk)
    history = table.history_slots
    return Slots(
        is_forward=is_forward[..., None],
        op=jnp.where(table.kind == Pass.IDLE, 2 * num_chunks, op),
        source_row=jnp.where(table.source_slot < 0, history, table.source_slot % history),
        source_stage=jnp.maximum(table.source_stage, 0),
        op_times_s=_op_times(table, times),
        blocking_fraction=times.blocking_fraction,
    )


def initial_state(table: ScheduleTable, times: StageTimes) -> State:
    """Returns the state before the first slot: all free at 0."""
    zeros = jnp.zeros_like(times.tail_s)
    arrival_s = jnp.zeros((table.history_slots + 1, *zeros.shape), zeros.dtype)
    return State(zeros, zeros, zeros, zeros, arrival_s)


def run_slot(slots: Slots, slot: Int[jax.Array, ""], state: State) -> tuple[State, Span]:
    """Returns the state after one slot, and when its ops ran.

    An idle stage runs an op of no time. It may move its links' free time up to the stage's own,
    which changes nothing: whatever it sends later leaves later still.
    """
    op, source = slots.op[slot], (slots.source_row[slot], slots.source_stage[slot])
    times_s = slots.op_times_s[op, jnp.arange(op.shape[0])]
    duration_s, awaited_transfer_s, transfer_s = times_s[:, 0], times_s[:, 1], times_s[:, 2]
    is_forward = slots.is_forward[slot]

    start_s = jnp.maximum(state.free_s, state.arrival_s[source])
    end_s = start_s + duration_s
    link_free_s = jnp.where(is_forward, state.forward_link_free_s, state.backward_link_free_s)
    arrival_s = jnp.maximum(end_s, link_free_s) + transfer_s
    wait_s = jnp.minimum(start_s - state.free_s, awaited_transfer_s)

    history = state.arrival_s.shape[0] - 1
    after = State(
        free_s=end_s + slots.blocking_fraction[None] * transfer_s,
        forward_link_free_s=jnp.where(is_forward, arrival_s, state.forward_link_free_s),
        backward_link_free_s=jnp.where(is_forward, state.backward_link_free_s, arrival_s),
        transfer_wait_s=state.transfer_wait_s + wait_s,
        arrival_s=lax.dynamic_update_index_in_dim(state.arrival_s, arrival_s, slot % history, 0),
    )
    return after, Span(start_s, end_s)


def _virtual_stages(
    table: ScheduleTable, num_chunks: int, num_stages: int
) -> tuple[Int[jax.Array, "chunks stages"], Bool[jax.Array, "chunks stages"]]:
    """Returns the virtual stage of each chunk and stage, and whether the table has it."""
    chunk, stage = jnp.arange(num_chunks)[:, None], jnp.arange(num_stages)[None]
    is_used = (chunk < table.num_chunks) & (stage < table.num_stages)
    return chunk * table.num_stages + stage, is_used


def _op_times(table: ScheduleTable, times: StageTimes) -> Float[jax.Array, "_ stages 3 batch"]:
    virtual_stage, is_used = _virtual_stages(table, *times.forward_s.shape[:2])
    last = table.num_chunks * table.num_stages - 1

    def awaited(transfer_s: jax.Array, sender: jax.Array, has_sender: jax.Array) -> jax.Array:
        sender = jnp.where(has_sender, sender, 0)
        chunk, stage = sender // table.num_stages, sender % table.num_stages
        return jnp.where(has_sender[..., None], transfer_s[chunk, stage], 0)

    from_previous = awaited(
        times.forward_transfer_s, virtual_stage - 1, is_used & (virtual_stage > 0)
    )
    from_next = awaited(
        times.backward_transfer_s, virtual_stage + 1, is_used & (virtual_stage < last)
    )
    forward_s = jnp.stack([times.forward_s, from_previous, times.forward_transfer_s], axis=2)
    backward_s = jnp.stack([times.backward_s, from_next, times.backward_transfer_s], axis=2)
    return jnp.concatenate([forward_s, backward_s, jnp.zeros_like(forward_s[:1])])
