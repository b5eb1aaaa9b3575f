"""The compiled part of op tables: in which slot each op runs, and the rows that say so.

Ops are numbered by pass, then micro-batch, then virtual stage, so that what an op awaits is the
number beside its own. Loops go through the ops of a stage, or through the stages of a slot, in
the order in which arrays hold them.
"""

from typing import Any

from numba import int32, int64

from apss_jax.native import compiled, inner

# As `apss_jax.cost.op_table.Pass` has them.
_FORWARD, _BACKWARD = 1, 2
# What `fill_slots` says of orders that make no table.
NOT_A_STEP, BACKWARD_FIRST, WAITING = -1, -2, -3
FAULTS = {
    NOT_A_STEP: "each stage must run one forward and one backward for each micro-batch and chunk",
    BACKWARD_FIRST: "a stage's order runs a backward pass before its forward pass",
    WAITING: "the orders wait for each other",
}
_UNSEEN, _SEEN = -2, -1  # in place of an op's slot, before it has one
ORDER = int32[:, :, ::1]  # kind, micro-batch and chunk of each op, by stage


@inner
def _number(order: Any, num_chunks: int, op_id: Any, slot_of_id: Any) -> int:
    """Writes the number of each op; returns what keeps the orders from being a step, else 0."""
    stages, ops = op_id.shape
    num_micro_batches, pieces = ops // (2 * num_chunks), num_chunks * stages
    slot_of_id[:] = _UNSEEN
    for stage in range(stages):
        for op in range(ops):
            kind, micro_batch, chunk = order[0, stage, op], order[1, stage, op], order[2, stage, op]
            is_known = _FORWARD <= kind <= _BACKWARD and 0 <= chunk < num_chunks
            if not (is_known and 0 <= micro_batch < num_micro_batches):
                return NOT_A_STEP
            forward = micro_batch * pieces + chunk * stages + stage
            own = forward + (kind - _FORWARD) * num_micro_batches * pieces
            if slot_of_id[own] == _SEEN:
                return NOT_A_STEP
            if kind == _BACKWARD and slot_of_id[forward] != _SEEN:
                return BACKWARD_FIRST
            slot_of_id[own] = _SEEN
            op_id[stage, op] = own
    return 0


@inner
def _awaited(own: int, stage: int, stages: int, pieces: int, half: int) -> int:
    """Returns the number of the op whose message an op awaits, -1 where it awaits none.

    The first virtual stage's forward and the last one's backward passes do not.
    """
    if own < half:
        return own - 1 if stage > 0 or own % pieces > 0 else -1
    return own + 1 if stage < stages - 1 or own % pieces < pieces - 1 else -1


@compiled(int64(ORDER, int64, int64[::1], int64[:, ::1], int64[::1]))
def fill_slots(order: Any, num_chunks: int, heads: Any, op_id: Any, slot_of_id: Any) -> int:
    """Returns how many slots the ops take, each in the earliest one, or a code for what is wrong.

    Writes each op's number, and the slot of each number; `heads`, one for each stage, is room.
    """
    stages, ops = op_id.shape
    fault = _number(order, num_chunks, op_id, slot_of_id)
    if fault:
        return fault
    heads[:] = 0
    left, slot, half, pieces = op_id.size, 0, op_id.size // 2, num_chunks * stages
    while left:
        begun = 0
        for stage in range(stages):
            if heads[stage] == ops:
                continue
            own = op_id[stage, heads[stage]]
            awaited = _awaited(own, stage, stages, pieces, half)
            if awaited < 0 or 0 <= slot_of_id[awaited] < slot:
                slot_of_id[own] = slot
                heads[stage] += 1
                begun += 1
        if begun == 0:
            return WAITING
        left -= begun
        slot += 1
    return slot


@compiled(int64(ORDER, int64, int64[::1], int64[:, ::1], int64[::1], int32[:, :, ::1]))
def write_rows(
    order: Any, num_chunks: int, heads: Any, op_id: Any, slot_of_id: Any, rows: Any
) -> int:
    """Writes kind, micro-batch, chunk, source slot and source stage of each op into its slot.

    Returns the most slots that a message waits. `rows` comes filled with what idle stages have;
    the other arguments are what `fill_slots` left.
    """
    stages, ops = op_id.shape
    longest_wait = 0
    half, pieces = op_id.size // 2, num_chunks * stages
    heads[:] = 0
    for slot in range(rows.shape[1]):
        for stage in range(stages):
            op = heads[stage]
            if op == ops or slot_of_id[op_id[stage, op]] != slot:
                continue
            heads[stage] += 1
            for column in range(3):
                rows[column, slot, stage] = order[column, stage, op]
            awaited = _awaited(op_id[stage, op], stage, stages, pieces, half)
            if awaited >= 0:
                rows[3, slot, stage] = slot_of_id[awaited]
                rows[4, slot, stage] = awaited % stages
                longest_wait = max(longest_wait, slot - slot_of_id[awaited])
    return longest_wait
