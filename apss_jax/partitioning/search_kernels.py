"""The compiled local search over cuts, by the simulated step.

A move shifts a block of neighbouring cuts by one layer: the pieces inside it keep their number of
layers, those at its ends give one and take one. The move with the least bound from below is made
and simulated, the bound being the longest of the paths that earlier simulations found; the path
of a step that proved no better raises the bound. Where no single move helps, several are made one
after the other by their bounds before they are simulated. It ends where the bounds leave no hope,
or the budget of simulated steps is spent. What does not fit is not simulated.
"""

from math import inf
from typing import Any

from numba import boolean, float64, int64, types

from apss_jax.native import compiled, inner
from apss_jax.partitioning.flow_kernels import (
    IN_FLIGHT,
    NEWEST,
    PROBLEM,
    ROOM,
    SAVED,
    SCHEDULE,
    STATES,
    STEP,
    fill_pieces,
)
from apss_jax.partitioning.path_kernels import (
    MOST_PATHS,
    add_path,
    follow_move,
    length_after,
    measure_path,
    measure_paths,
)

# Entries of the cursor: simulated steps left, the seed of what is drawn, and moves that are made:
# the first cut of each, how many there are, and the way they go.
LEFT, SEED, _MOVES = range(3)
_FIRST, _LENGTH, _WAY, _MOVE_ENTRIES = range(4)
# Moves that are made before they are simulated, at most.
_MOST_AHEAD = 4
CURSOR_ENTRIES = _MOVES + _MOVE_ENTRIES * _MOST_AHEAD
# Moves at random that throw cuts off a place where none helps.
_THROWS = 3
# What a throw counts for while nothing fits: moves are tried then without simulating any.
_UNFIT_EVALUATIONS = 16
# Less than this share of a step is rounding, no gain.
_GAIN_FRACTION = 1e-10
# Simulated steps in a row that were no better: more than paths are kept, bounds come back.
_MOST_FAILED = 2 * MOST_PATHS


@inner
def excess(problem: Any, offsets: Any) -> float:
    """Returns by what share of their capacity stages are overfull, added up; 0 if all fit."""
    _, _, held, places, allowed = problem
    stages, count = allowed.shape[0], places.shape[1]
    total = 0.0
    for stage in range(stages):
        used = 0.0
        for piece in range(stage, count, stages):
            start, end = offsets[piece], offsets[piece + 1]
            used += held[STATES, end] - held[STATES, start]
            used += places[IN_FLIGHT, piece] * (held[SAVED, end] - held[SAVED, start])
        if used > allowed[stage]:
            total += used / max(allowed[stage], 1.0) - 1.0
    return total


@inner
def shift(offsets: Any, first: int, length: int, step: int) -> bool:
    """Moves `length` offsets from `first` by `step` layers; False, unmoved, if a piece empties."""
    last = first + length - 1
    if step > 0 and offsets[last] + step >= offsets[last + 1]:
        return False
    if step < 0 and offsets[first] + step <= offsets[first - 1]:
        return False
    for place in range(first, first + length):
        offsets[place] += step
    return True


@inner
def copy(source: Any, target: Any) -> None:
    """Copies entry by entry: an assignment of slices would count references and allocate."""
    for place in range(source.size):
        target[place] = source[place]


@inner
def _make_fit(problem: Any, offsets: Any) -> bool:
    """Makes moves that leave less of what is too large; False if they end before all fits."""
    count, over = offsets.size - 1, excess(problem, offsets)
    helped = True
    while helped and over > 0.0:
        helped = False
        for length in range(1, count):
            for first in range(1, count - length + 1):
                for step in (1, -1):
                    while over > 0.0 and shift(offsets, first, length, step):
                        moved = excess(problem, offsets)
                        if moved >= over:
                            shift(offsets, first, length, -step)
                            break
                        over, helped = moved, True
    return over == 0.0


@inner
def _best_move(
    problem: Any, offsets: Any, room: Any, target_s: float, cursor: Any, at: int
) -> float:
    """Writes the move with the least bound below the target, of length 0 if none; its bound."""
    count = room[0].shape[1]
    cursor[at + _LENGTH] = 0
    for length in range(1, count):
        for first in range(1, count - length + 1):
            for step in (1, -1):
                bound_s = length_after(room, first, first + length - 1, step, target_s)
                if bound_s < target_s and shift(offsets, first, length, step):
                    if excess(problem, offsets) == 0.0:
                        target_s = bound_s
                        cursor[at + _FIRST], cursor[at + _LENGTH] = first, length
                        cursor[at + _WAY] = step
                    shift(offsets, first, length, -step)
    return target_s


@inner
def _move(problem: Any, offsets: Any, room: Any, first: int, length: int, step: int) -> None:
    """Makes a move, in the pieces and in the paths too."""
    shift(offsets, first, length, step)
    fill_pieces(problem, offsets, first - 1, first + length, room[0])
    follow_move(problem, offsets, room, first, first + length - 1, step)


@inner
def _make_moves(
    problem: Any, offsets: Any, room: Any, step_s: float, depth: int, cursor: Any
) -> int:
    """Makes up to `depth` moves, each with the least bound; returns their number."""
    for number in range(depth):
        at, target_s = _MOVES + _MOVE_ENTRIES * number, step_s * (1.0 - _GAIN_FRACTION)
        step_s = _best_move(problem, offsets, room, target_s, cursor, at)
        first, length = cursor[at + _FIRST], cursor[at + _LENGTH]
        if length == 0:
            return number
        _move(problem, offsets, room, first, length, cursor[at + _WAY])
    return depth


@inner
def _take_back(problem: Any, offsets: Any, room: Any, made: int, cursor: Any) -> None:
    """Undoes the moves that were made."""
    for number in range(made - 1, -1, -1):
        at = _MOVES + _MOVE_ENTRIES * number
        first, length = cursor[at + _FIRST], cursor[at + _LENGTH]
        _move(problem, offsets, room, first, length, -cursor[at + _WAY])


@inner
def _simulated_s(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any,
    limit_s: float, cursor: Any,
) -> float:  # fmt: skip
    """Returns the step of the pieces, inf if it reaches the limit, and keeps its path."""
    cursor[LEFT] -= 1
    found_s = step_s(schedule, blocking, room, limit_s)
    add_path(schedule, blocking, room)
    measure_path(problem, offsets, room, room[4][NEWEST])
    return float(found_s)


@inner
def _improve(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any,
    cursor: Any,
) -> float:  # fmt: skip
    """Returns the step time where no move helps any more, or the budget ends; as `improve`."""
    if not _make_fit(problem, offsets):
        return inf
    fill_pieces(problem, offsets, 0, room[0].shape[1], room[0])
    measure_paths(problem, offsets, room)
    best_s = _simulated_s(step_s, problem, schedule, blocking, offsets, room, inf, cursor)
    depth, failed = 1, 0
    while cursor[LEFT] > 0 and failed < _MOST_FAILED:
        made = _make_moves(problem, offsets, room, best_s, depth, cursor)
        if made == 0:
            break
        target_s = best_s * (1.0 - _GAIN_FRACTION)
        found_s = _simulated_s(
            *(step_s, problem, schedule, blocking, offsets, room, target_s, cursor)
        )
        if found_s < target_s:
            best_s, depth, failed = found_s, 1, 0
        else:
            failed += 1
            _take_back(problem, offsets, room, made, cursor)
            depth = depth + 1 if made == depth and depth < _MOST_AHEAD else 1
    return best_s


@inner
def draw(cursor: Any, below: int) -> int:
    """Returns a number from 0 that is less than `below`; the seed moves on."""
    # The constants of the C standard's example generator; its high bits are the random ones.
    cursor[SEED] = (cursor[SEED] * 1103515245 + 12345) & 0x7FFFFFFF
    return (cursor[SEED] >> 8) % below


_IMPROVE = float64(
    *(STEP, PROBLEM, SCHEDULE, float64, int64[::1], ROOM),
    *(int64[::1], int64[::1], boolean),
)
# `improve` as other kernels get it.
IMPROVE: Any = types.FunctionType(_IMPROVE)


@compiled(_IMPROVE)
def improve(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any,
    cursor: Any, spare: Any, is_thrown: bool,
) -> float:  # fmt: skip
    """Returns the step time of the best cuts found from `offsets`, and leaves those there.

    It is inf where no fitting cuts were found: then cuts that are less overfull are left.
    `cursor[LEFT]` is what may still be simulated, and is counted down. Cuts are also thrown off
    what is found while the budget lasts, if that is asked for. Paths in the room must be of this
    schedule.
    """
    count = room[0].shape[1]
    best_s = inf
    copy(offsets, spare)
    while True:
        found_s = _improve(step_s, problem, schedule, blocking, spare, room, cursor)
        if found_s < best_s or best_s == inf:
            best_s = found_s
            copy(spare, offsets)
        if not is_thrown or cursor[LEFT] <= 0 or count == 1:
            return best_s
        cursor[LEFT] -= 1 if best_s < inf else _UNFIT_EVALUATIONS
        copy(offsets, spare)
        for _ in range(_THROWS):
            first = 1 + draw(cursor, count - 1)
            length = 1 + draw(cursor, count - first)
            shift(spare, first, length, 1 if draw(cursor, 2) == 0 else -1)
