"""The compiled search for the path that decides a step, and what such paths say of other cuts.

A step takes as long as the longest path through its ops and messages. A path passes each piece's
forward and backward pass, tail and message some number of times. Whatever the pieces take, no step
of that schedule is shorter than any of its paths: paths of a few simulated steps tell of most
other cuts that they are no better, without simulating them. The step is convex in the times, and
the counts of its longest path are a subgradient: this is a model of cutting planes (Kelley 1960).
A path takes a sum over cuts, so that what it gains by moving some of them is looked up.
"""

from typing import Any

from apss_jax.native import inner
from apss_jax.partitioning.flow_kernels import (
    AWAITED,
    BACKWARD,
    END_SLOT,
    END_STAGE,
    FORWARD,
    IS_CHAIN,
    LINK,
    NEWEST,
    NUM_PATHS,
    NUM_PIECE_ROWS,
    OP_AGE,
    OP_IS_FORWARD,
    OP_PIECE,
    OP_SHIFT,
    OP_SOURCE,
    PERIOD,
    QUEUED,
    ROW,
    ROWS,
    SENT,
    SKIP_AFTER,
    SKIPPED,
    TAIL,
    UNRUN_WAVES,
)

# Rows of a path, [rows, pieces]: how often it passes each piece's row of times, then, for the
# offsets it was measured with, what it gains if all cuts up to one are a layer later or earlier,
# and what it takes.
LATER, EARLIER, LENGTH = range(NUM_PIECE_ROWS, NUM_PIECE_ROWS + 3)
NUM_PATH_ROWS = NUM_PIECE_ROWS + 3
# Paths that are kept; with half of them a search of 32 stages simulates a fifth more steps.
MOST_PATHS = 32

# What the path was found to wait for: its stage to be free, a message, or the link that another
# message of that direction was on.
_STAGE, _MESSAGE, _LINK = range(3)


@inner
def add_path(schedule: Any, blocking: float, room: Any) -> None:
    """Adds the path that decides the step simulated last, in the place of the oldest if need be."""
    marks, paths = room[4], room[5]
    marks[NEWEST] = (marks[NEWEST] + 1) % paths.shape[0]
    marks[NUM_PATHS] = min(marks[NUM_PATHS] + 1, paths.shape[0])
    _begin_path(marks, paths[marks[NEWEST]], room[2].shape[2])
    _follow_path(schedule, blocking, room, paths[marks[NEWEST]])


@inner
def measure_path(problem: Any, offsets: Any, room: Any, path: int) -> None:
    """Writes the length of a path with some offsets, and by how much moves of cuts change it."""
    pieces, paths = room[0], room[5]
    paths[path, LENGTH, 0] = 0.0
    for row in range(NUM_PIECE_ROWS):
        for piece in range(pieces.shape[1]):
            paths[path, LENGTH, 0] += paths[path, row, piece] * pieces[row, piece]
    for change in (LATER, EARLIER):
        for cut in range(pieces.shape[1]):
            paths[path, change, cut] = 0.0
    _measure_cuts(problem, offsets, paths, path, 1, pieces.shape[1] - 1)


@inner
def measure_paths(problem: Any, offsets: Any, room: Any) -> None:
    """Does that for all paths."""
    marks, paths = room[4], room[5]
    for age in range(marks[NUM_PATHS]):
        measure_path(problem, offsets, room, (marks[NEWEST] - age) % paths.shape[0])


@inner
def follow_move(problem: Any, offsets: Any, room: Any, first: int, last: int, step: int) -> None:
    """Brings measured paths to the offsets after cuts `first` to `last` have moved."""
    marks, paths = room[4], room[5]
    change = LATER if step > 0 else EARLIER
    for age in range(marks[NUM_PATHS]):
        path = (marks[NEWEST] - age) % paths.shape[0]
        paths[path, LENGTH, 0] += paths[path, change, last] - paths[path, change, first - 1]
        _measure_cuts(problem, offsets, paths, path, first, last)


@inner
def _measure_cuts(problem: Any, offsets: Any, paths: Any, path: int, first: int, last: int) -> None:
    """Writes what a path gains by moves of some cuts; sums over the cuts behind them follow."""
    sums, sent, _, places, _ = problem
    for change, step in ((LATER, 1), (EARLIER, -1)):
        sum_s, was_s = paths[path, change, first - 1], paths[path, change, last]
        for cut in range(first, last + 1):
            here, there = offsets[cut], offsets[cut] + step
            before, after, link = places[ROW, cut - 1], places[ROW, cut], places[LINK, cut - 1]
            sum_s += paths[path, SENT, cut - 1] * (sent[link, there] - sent[link, here])
            for row in range(sums.shape[0]):
                gained_s = sums[row, before, there] - sums[row, before, here]
                lost_s = sums[row, after, there] - sums[row, after, here]
                sum_s += paths[path, row, cut - 1] * gained_s - paths[path, row, cut] * lost_s
            paths[path, change, cut] = sum_s
        for cut in range(last + 1, paths.shape[2]):
            paths[path, change, cut] += sum_s - was_s


@inner
def length_after(room: Any, first: int, last: int, step: int, enough_s: float) -> float:
    """Returns the longest path once cuts `first` to `last` have moved: the step is no shorter.

    Once a path is found that takes `enough_s`, others are not looked at. Paths must be measured.
    """
    marks, paths = room[4], room[5]
    change, longest_s = LATER if step > 0 else EARLIER, 0.0
    for age in range(marks[NUM_PATHS]):
        path = (marks[NEWEST] - age) % paths.shape[0]
        moved_s = paths[path, change, last] - paths[path, change, first - 1]
        longest_s = max(longest_s, paths[path, LENGTH, 0] + moved_s)
        if longest_s >= enough_s:
            break
    return longest_s


@inner
def _begin_path(marks: Any, path: Any, stages: int) -> None:
    """Counts what lies behind the last op that was run."""
    for row in range(NUM_PIECE_ROWS):
        for piece in range(path.shape[1]):
            path[row, piece] = 0.0
    stage, waves = marks[END_STAGE], marks[UNRUN_WAVES]
    path[BACKWARD, stage] += waves
    path[FORWARD, stage] += max(waves - (stages - 1 - stage), 0)
    if marks[IS_CHAIN] == 0:
        for piece in range(stage, path.shape[1], stages):
            path[TAIL, piece] += 1
        return
    path[TAIL, 0] += 1
    for before in range(stage):
        path[BACKWARD, before] += 1
        path[SENT, before] += 1


@inner
def _noted(notes: Any, marks: Any, slot: int, stage: int) -> int:
    """Returns the note of a slot; slots that were not run have that of the round before them."""
    if slot <= marks[SKIP_AFTER]:
        return int(notes[slot, stage])
    beyond = slot - marks[SKIP_AFTER] - 1
    if beyond < marks[SKIPPED]:
        return int(notes[marks[SKIP_AFTER] + 1 - marks[PERIOD] + beyond % marks[PERIOD], stage])
    return int(notes[slot - marks[SKIPPED], stage])


@inner
def _op_at(schedule: Any, slot: int, stage: int, note: int) -> tuple[int, bool, int, int]:
    """Returns an op's piece, whether that goes forward, and its message's sender and age."""
    sizes, ops, _, _ = schedule
    if sizes[ROWS] == 0:
        if slot % 2 == 0:
            return stage, True, stage - 1, 2
        return stage, False, stage + 1, 0
    op = (note >> OP_SHIFT) - 1
    return ops[op, OP_PIECE], ops[op, OP_IS_FORWARD] == 1, ops[op, OP_SOURCE], ops[op, OP_AGE]


@inner
def _follow_path(schedule: Any, blocking: float, room: Any, path: Any) -> None:
    """Counts the path from its end to the start of the step."""
    notes, marks, last = room[3], room[4], path.shape[1] - 1
    stage, slot, waits_for = marks[END_STAGE], marks[END_SLOT], _STAGE
    is_ahead = False
    while slot >= 0:
        note = _noted(notes, marks, slot, stage)
        if note == 0:
            slot -= 1
            continue
        piece, is_forward, source, age = _op_at(schedule, slot, stage, note)
        if waits_for == _LINK and is_forward != is_ahead:
            slot -= 1
            continue
        link = piece if is_forward else piece - 1
        share = blocking if waits_for == _STAGE else 1.0
        if 0 <= link < last:
            path[SENT, link] += share
        if waits_for != _STAGE and note & QUEUED:
            waits_for, is_ahead, slot = _LINK, is_forward, slot - 1
            continue
        path[FORWARD if is_forward else BACKWARD, piece] += 1
        if note & AWAITED:
            waits_for, stage, slot = _MESSAGE, source, slot - age
        else:
            waits_for, slot = _STAGE, slot - 1
