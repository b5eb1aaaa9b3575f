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

    `op` picks a row of `op_times_s`: idle, then forward and backward of each chunk. Its three
    columns are the op's duration, the transfer of the message it awaits and of the one it sends.
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
    num_chunks, num_stages = times.forward_s.shape[:2]
    chunk, stage = jnp.arange(num_chunks)[:, None], jnp.arange(num_stages)[None]
    virtual_stage = chunk * table.num_stages + stage
    is_used = (chunk < table.num_chunks) & (stage < table.num_stages)
    last = table.num_chunks * table.num_stages - 1
    is_sent = is_used & (table.num_stages > 1)

    def keep(mask: Bool[jax.Array, "*chunks stages"], values_s: jax.Array) -> jax.Array:
        return jnp.where(mask[..., None], values_s, 0)

    return times._replace(
        forward_s=keep(is_used, times.forward_s),
        backward_s=keep(is_used, times.backward_s),
        forward_transfer_s=keep(is_sent & (virtual_stage != last), times.forward_transfer_s),
        backward_transfer_s=keep(is_sent & (virtual_stage != 0), times.backward_transfer_s),
        tail_s=keep(stage[0] < table.num_stages, times.tail_s),
    )


def make_slots(table: ScheduleTable, times: StageTimes) -> Slots:
    """Returns the slots of a table; `times` come from `without_unsent`."""
    history = table.history_slots  # a power of two
    return Slots(
        is_forward=(table.kind == Pass.FORWARD)[..., None],
        op=2 * table.chunk + table.kind,
        source_row=jnp.where(table.source_slot < 0, history, table.source_slot & (history - 1)),
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

    row = slot & (state.arrival_s.shape[0] - 2)  # modulo the history, a power of two
    after = State(
        free_s=end_s + slots.blocking_fraction[None] * transfer_s,
        forward_link_free_s=jnp.where(is_forward, arrival_s, state.forward_link_free_s),
        backward_link_free_s=jnp.where(is_forward, state.backward_link_free_s, arrival_s),
        transfer_wait_s=state.transfer_wait_s + wait_s,
        arrival_s=lax.dynamic_update_index_in_dim(state.arrival_s, arrival_s, row, 0),
    )
    return after, Span(start_s, end_s)


def _op_times(table: ScheduleTable, times: StageTimes) -> Float[jax.Array, "_ stages 3 batch"]:
    """Returns the times of each op; one awaits what virtual stages beside its own send."""
    forward_s = (times.forward_s, _from_previous(table, times), times.forward_transfer_s)
    backward_s = (times.backward_s, _from_next(table, times), times.backward_transfer_s)
    # [chunks, passes, stages, 3, batch], the passes of one chunk after those of the other
    both = jnp.stack([jnp.stack(forward_s, axis=2), jnp.stack(backward_s, axis=2)], axis=1)
    ops = both.reshape(-1, *both.shape[2:])
    return jnp.concatenate([jnp.zeros_like(ops[:1]), ops])


def _from_previous(
    table: ScheduleTable, times: StageTimes
) -> Float[jax.Array, "chunks stages batch"]:
    """Returns the forward transfer of the virtual stage before; before the first, of none."""
    sent_s = times.forward_transfer_s
    wrapped = sent_s[:-1, table.num_stages - 1]
    first = jnp.concatenate([jnp.zeros_like(sent_s[:1, 0]), wrapped])
    return jnp.concatenate([first[:, None], sent_s[:, :-1]], axis=1)


def _from_next(table: ScheduleTable, times: StageTimes) -> Float[jax.Array, "chunks stages batch"]:
    """Returns the backward transfer of the virtual stage after; after the last, of none."""
    sent_s = times.backward_transfer_s
    wrapped = jnp.concatenate([sent_s[1:, 0], jnp.zeros_like(sent_s[:1, 0])])
    after = jnp.concatenate([sent_s[:, 1:], jnp.zeros_like(sent_s[:, :1])], axis=1)
    is_last = jnp.arange(sent_s.shape[1]) == table.num_stages - 1
    return jnp.where(is_last[None, :, None], wrapped[:, None], after)
