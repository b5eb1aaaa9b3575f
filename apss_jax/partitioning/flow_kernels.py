"""The compiled simulator of one pipeline: scalar twin of `apss_jax.cost.simulate`.

It follows each op as `apss_jax.cost.slots` does: an op starts when its stage is free and its
message is there; a message leaves when its op is done and the link has delivered the one before.

1F1B needs no table. In *wave* i, stage s runs the forward pass of micro-batch i + stages - 1 - s,
then the backward pass of micro-batch i: from the last stage to the first, every message that an op
awaits is there. Other schedules come as rows of ops; repeated rows are run until the state before
them is the state after, all times later by one constant, and that constant is then added for the
rest. The same is done for waves, whatever number of them a round takes.

What every op waited for is noted, so that the path which decides the step can be followed back
(`path_kernels`).
"""

from math import inf
from typing import Any

from numba import float64, int32, int64, types, void

from apss_jax.native import compiled, inner

# What every entry takes. A problem: sums, sent, held, places, allowed; see `flow.Flow`.
# A schedule: sizes, ops, starts of rows, carried. Room: pieces, work, ring, notes, marks, paths.
_tuple: Any = types.Tuple
PROBLEM = _tuple(
    (float64[:, :, ::1], float64[:, ::1], float64[:, ::1], int64[:, ::1], float64[::1])
)
SCHEDULE = _tuple((int64[::1], int64[:, ::1], int64[::1], int64[:, ::1]))
ROOM = _tuple(
    (
        *(float64[:, ::1], float64[:, ::1], float64[:, :, ::1]),
        *(int32[:, ::1], int64[::1], float64[:, :, ::1]),
    )
)
_STEP = float64(SCHEDULE, float64, ROOM, float64)
# `step_s` as other kernels get it.
STEP: Any = types.FunctionType(_STEP)

# Tables of one problem: sums over layers of the times of each row, [passes, rows, offsets], of
# states and of what is saved, [2, offsets]; messages by where they are cut, [links, offsets].
STATES, SAVED = range(2)
# What is said of each piece, [places, pieces]: its row of the times, the link of its messages to
# the next piece, and the micro-batches it keeps.
ROW, LINK, IN_FLIGHT = range(3)

# Rows of the table of pieces, [rows, pieces]; the message of a piece is the one to the next.
FORWARD, BACKWARD, TAIL, SENT = range(4)
NUM_PIECE_ROWS = 4

# Rows of the work table, [rows, pieces + 1]. Stage s reads what arrives from before at s and from
# behind at s + 1, so that the first and the last stage read a message that is always there.
_FREE, _AHEAD, _BACK, _KEPT_FREE, _KEPT_AHEAD, _KEPT_BACK = range(6)
NUM_WORK_ROWS = 6

# Entries of the sizes of a schedule. Without rows it is 1F1B.
MICRO_BATCHES, ROWS, REPEAT_START, REPEAT_STOP, REPEATS = range(5)

# Columns of the ops of a schedule: the age is in rows, 0 where no message is awaited.
OP_STAGE, OP_PIECE, OP_IS_FORWARD, OP_AGE, OP_SOURCE = range(5)

# A note of the op of a stage in a slot, 0 where it has none: whether its stage waited for the
# message, whether the link was busy when its own was ready, and from OP_SHIFT on the number of the
# op in the schedule from 1. A wave of 1F1B has two slots, of forward and of backward passes.
AWAITED, QUEUED, OP_SHIFT = 1, 2, 2

# Marks beside the notes. Rounds that were added without running them: the last slot before them,
# the slots of a round, and of all of them. The path: where it ends; the waves to go that its stage
# would run one after the other; whether the stages before it then finish. The paths that are kept,
# and the one found last.
SKIP_AFTER, PERIOD, SKIPPED, END_STAGE, END_SLOT, UNRUN_WAVES, IS_CHAIN, NUM_PATHS, NEWEST = range(
    9
)
NUM_MARKS = 9
_NO_SKIP = 1 << 60

# Share of the time so far by which times of a settled schedule may differ.
_SETTLED_FRACTION = 1e-13


@inner
def _run_wave(
    pieces: Any, wave: int, micro_batches: int, work: Any, blocking: float, notes: Any, slot: int
) -> None:
    """Runs one wave of 1F1B on every stage that has something to do in it."""
    count = pieces.shape[1]
    top = count - 1 if wave >= 0 else count - 1 + wave
    forward_from = wave + count - micro_batches
    for back in range(count - 1 - top, count):
        stage = count - 1 - back
        free_s, note = work[_FREE, stage], 0
        if stage >= forward_from:
            note = 1 << OP_SHIFT
            if work[_AHEAD, stage] > free_s:
                free_s, note = work[_AHEAD, stage], note | AWAITED
            free_s += pieces[FORWARD, stage]
            if work[_AHEAD, stage + 1] > free_s:
                note |= QUEUED
            sent_s = pieces[SENT, stage]
            work[_AHEAD, stage + 1] = max(free_s, work[_AHEAD, stage + 1]) + sent_s
            free_s += blocking * sent_s
        notes[slot, stage] = note
        if wave >= 0:
            note = 1 << OP_SHIFT
            if work[_BACK, stage + 1] > free_s:
                free_s, note = work[_BACK, stage + 1], note | AWAITED
            free_s += pieces[BACKWARD, stage]
            if stage > 0:
                if work[_BACK, stage] > free_s:
                    note |= QUEUED
                sent_s = pieces[SENT, stage - 1]
                work[_BACK, stage] = max(free_s, work[_BACK, stage]) + sent_s
                free_s += blocking * sent_s
            notes[slot + 1, stage] = note
        work[_FREE, stage] = free_s


@inner
def _slowest(pieces: Any) -> int:
    """Returns the stage with most to do."""
    best = 0
    for stage in range(1, pieces.shape[1]):
        own_s = pieces[FORWARD, stage] + pieces[BACKWARD, stage]
        if own_s > pieces[FORWARD, best] + pieces[BACKWARD, best]:
            best = stage
    return best


@inner
def _step_of_waves_s(room: Any, micro_batches: int, blocking: float, limit_s: float) -> float:
    pieces, work, _, notes, marks, _ = room
    count = pieces.shape[1]
    for row in range(NUM_WORK_ROWS):
        for stage in range(count + 1):
            work[row, stage] = 0.0
    slowest = _slowest(pieces)
    after_s = pieces[TAIL, 0]
    for stage in range(slowest):
        after_s += pieces[BACKWARD, stage] + pieces[SENT, stage]
    marks[IS_CHAIN] = 1 if after_s > pieces[TAIL, slowest] else 0
    after_s = max(after_s, pieces[TAIL, slowest])
    marks[SKIP_AFTER], marks[SKIPPED] = _NO_SKIP, 0
    wave, mark, patience = 1 - count, 0, 1
    while wave < micro_batches:
        slot = 2 * (wave + count - 1)
        _run_wave(pieces, wave, micro_batches, work, blocking, notes, slot - marks[SKIPPED])
        left_s = (micro_batches - 1 - wave) * pieces[BACKWARD, slowest]
        forwards = micro_batches - 1 - wave - (count - 1 - slowest)
        left_s += max(forwards, 0) * pieces[FORWARD, slowest]
        if wave >= 0 and work[_FREE, slowest] + left_s + after_s >= limit_s:
            marks[END_STAGE], marks[END_SLOT] = slowest, slot + 1
            marks[UNRUN_WAVES] = micro_batches - 1 - wave
            return inf
        # Waves from 0 to this one are full: all stages run both passes.
        if 0 <= wave < micro_batches - count:
            round_s = work[_FREE, 0] - work[_KEPT_FREE, 0]
            if patience > 0 and wave > mark and _is_settled(work, round_s):
                rounds = (micro_batches - count - wave) // (wave - mark)
                _add(work, rounds * round_s)
                marks[SKIP_AFTER], marks[PERIOD] = slot + 1, 2 * (wave - mark)
                marks[SKIPPED] = rounds * marks[PERIOD]
                wave += rounds * (wave - mark)
                patience = 0
            elif wave == 0 or 0 < patience <= wave - mark:
                mark, patience = wave, 2 * patience
                _keep(work)
        wave += 1
    marks[END_SLOT] = 2 * (micro_batches + count - 2) + 1
    return _end_s(pieces, count, work, marks)


@inner
def _is_settled(work: Any, round_s: float) -> bool:
    """Tells whether all times are those kept, later by a round."""
    tolerance_s = _SETTLED_FRACTION * work[_FREE, 0]
    stages = work.shape[1] - 1
    for stage in range(stages):
        if abs(work[_FREE, stage] - work[_KEPT_FREE, stage] - round_s) > tolerance_s:
            return False
    for row in (_AHEAD, _BACK):
        for stage in range(1, stages):
            if abs(work[row, stage] - work[row + 3, stage] - round_s) > tolerance_s:
                return False
    return True


@inner
def _keep(work: Any) -> None:
    for row in range(3):
        for stage in range(work.shape[1]):
            work[row + 3, stage] = work[row, stage]


@inner
def _add(work: Any, later_s: float) -> None:
    """Moves all times on; what the first and the last stage read stays at 0."""
    stages = work.shape[1] - 1
    for stage in range(stages):
        work[_FREE, stage] += later_s
    for stage in range(1, stages):
        work[_AHEAD, stage] += later_s
        work[_BACK, stage] += later_s


@inner
def _end_s(pieces: Any, stages: int, work: Any, marks: Any) -> float:
    """Returns when the last stage has reduced its gradients, and marks that stage."""
    end_s = 0.0
    marks[END_STAGE], marks[UNRUN_WAVES], marks[IS_CHAIN] = 0, 0, 0
    for stage in range(stages):
        tail_s = 0.0
        for piece in range(stage, pieces.shape[1], stages):
            tail_s += pieces[TAIL, piece]
        if work[_FREE, stage] + tail_s > end_s:
            end_s, marks[END_STAGE] = work[_FREE, stage] + tail_s, stage
    return end_s


@inner
def _run_row(room: Any, ops: Any, op_rows: Any, row: int, slot: int, blocking: float) -> None:
    """Runs the ops of one row; messages lie in the ring by slot and sender."""
    pieces, work, ring, notes, _, _ = room
    mask = ring.shape[1] - 1
    for stage in range(ring.shape[2]):
        notes[slot, stage] = 0
    for op in range(op_rows[row], op_rows[row + 1]):
        stage, piece, age = ops[op, OP_STAGE], ops[op, OP_PIECE], ops[op, OP_AGE]
        free_s, sent_s, note = work[_FREE, stage], 0.0, (op + 1) << OP_SHIFT
        if age > 0:
            came_s = ring[0, (slot - age) & mask, ops[op, OP_SOURCE]]
            if came_s > free_s:
                free_s, note = came_s, note | AWAITED
        link = _BACK
        if ops[op, OP_IS_FORWARD] == 1:
            link = _AHEAD
            free_s += pieces[FORWARD, piece]
            if piece + 1 < pieces.shape[1]:
                sent_s = pieces[SENT, piece]
        else:
            free_s += pieces[BACKWARD, piece]
            if piece > 0:
                sent_s = pieces[SENT, piece - 1]
        if work[link, stage] > free_s:
            note |= QUEUED
        notes[slot, stage] = note
        work[link, stage] = max(free_s, work[link, stage]) + sent_s
        ring[0, slot & mask, stage] = work[link, stage]
        work[_FREE, stage] = free_s + blocking * sent_s


@inner
def _step_of_rows_s(room: Any, schedule: Any, blocking: float) -> float:
    sizes, ops, op_rows, carried = schedule
    pieces, work, ring, _, marks, _ = room
    stages = ring.shape[2]
    for row in range(NUM_WORK_ROWS):
        for stage in range(work.shape[1]):
            work[row, stage] = 0.0
    ring[:] = 0.0
    marks[SKIP_AFTER], marks[SKIPPED] = _NO_SKIP, 0
    slot = 0
    for row in range(sizes[REPEAT_STOP]):
        if row == sizes[REPEAT_START]:
            _keep_round(work, ring)
        _run_row(room, ops, op_rows, row, slot, blocking)
        slot += 1
    start, stop = sizes[REPEAT_START], sizes[REPEAT_STOP]
    left = sizes[REPEATS]
    while left > 0:
        if _is_round_settled(carried, work, ring, slot, stop - start, stages):
            _add_rounds(work, ring, left * (work[_FREE, 0] - work[_KEPT_FREE, 0]), stages)
            marks[SKIP_AFTER], marks[PERIOD] = slot - 1, stop - start
            marks[SKIPPED] = left * marks[PERIOD]
            break
        _keep_round(work, ring)
        for row in range(start, stop):
            _run_row(room, ops, op_rows, row, slot, blocking)
            slot += 1
        left -= 1
    for row in range(stop, sizes[ROWS]):
        _run_row(room, ops, op_rows, row, slot, blocking)
        slot += 1
    marks[END_SLOT] = slot - 1 + marks[SKIPPED]
    return _end_s(pieces, stages, work, marks)


@inner
def _keep_round(work: Any, ring: Any) -> None:
    _keep(work)
    for slot in range(ring.shape[1]):
        for stage in range(ring.shape[2]):
            ring[1, slot, stage] = ring[0, slot, stage]


@inner
def _is_round_settled(
    carried: Any, work: Any, ring: Any, slot: int, period: int, stages: int
) -> bool:
    """Tells whether all that later rows read is what it was a round ago, later by a round.

    `carried` says by age in rows, from 1, which messages of which stage are still to be read.
    """
    mask = ring.shape[1] - 1
    round_s = work[_FREE, 0] - work[_KEPT_FREE, 0]
    tolerance_s = _SETTLED_FRACTION * work[_FREE, 0]
    for stage in range(stages):
        for row in range(3):
            if abs(work[row, stage] - work[row + 3, stage] - round_s) > tolerance_s:
                return False
        for age in range(1, carried.shape[0] + 1):
            if carried[age - 1, stage] == 1:
                now_s = ring[0, (slot - age) & mask, stage]
                then_s = ring[1, (slot - period - age) & mask, stage]
                if abs(now_s - then_s - round_s) > tolerance_s:
                    return False
    return True


@inner
def _add_rounds(work: Any, ring: Any, later_s: float, stages: int) -> None:
    for stage in range(stages):
        for row in range(3):
            work[row, stage] += later_s
        for slot in range(ring.shape[1]):
            ring[0, slot, stage] += later_s


@inner
def fill_pieces(problem: Any, offsets: Any, first: int, stop: int, pieces: Any) -> None:
    """Writes what pieces `first` to `stop` take with their ends at `offsets`."""
    sums, sent, _, places, _ = problem
    for piece in range(first, stop):
        row, start, end = places[ROW, piece], offsets[piece], offsets[piece + 1]
        for kind in range(3):
            pieces[kind, piece] = sums[kind, row, end] - sums[kind, row, start]
        pieces[SENT, piece] = 0.0
        if piece + 1 < pieces.shape[1]:
            pieces[SENT, piece] = sent[places[LINK, piece], end]


@compiled(_STEP)
def step_s(schedule: Any, blocking: float, room: Any, limit_s: float) -> float:
    """Returns the time of one step, or inf if it is known to reach `limit_s`."""
    sizes = schedule[0]
    if sizes[ROWS] == 0:
        return _step_of_waves_s(room, sizes[MICRO_BATCHES], blocking, limit_s)
    return _step_of_rows_s(room, schedule, blocking)


@compiled(void(STEP, PROBLEM, SCHEDULE, float64, int64[:, ::1], ROOM, float64[::1]))
def simulate(
    step: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any, found_s: Any
) -> None:
    """Writes the step time for each row of `offsets`."""
    for row in range(offsets.shape[0]):
        fill_pieces(problem, offsets[row], 0, room[0].shape[1], room[0])
        found_s[row] = step(schedule, blocking, room, inf)
