"""The compiled local search over cuts, by the simulated step.

A move shifts a block of neighbouring cuts by one layer: the pieces inside it keep their number of
layers, those at its ends give one and take one. Moves are tried in a fixed order, from the last
one that helped, until none of them helps or the budget of simulated steps is spent; what cannot be
better by its bound, or does not fit, is not simulated.
"""

from math import inf
from typing import Any

from numba import boolean, float64, int64, types

from apss_jax.partitioning.flow_kernels import (
    IN_FLIGHT,
    MICRO_BATCHES,
    PROBLEM,
    ROOM,
    SAVED,
    SCHEDULE,
    STATES,
    STEP,
    fill_pieces,
    least_step_s,
)
from apss_jax.partitioning.kernels import compiled, inner

# Entries of the cursor: simulated steps left, the seed of what is drawn, and the move to try.
LEFT, SEED, _START, _LENGTH, _STEP = range(5)
# Entries of the state: the step time of the cuts held, and by how much they are too large.
_STEP_S, _EXCESS = range(2)
# Moves at random that throw cuts off a place where no single one helps.
_THROWS = 3
# What a throw counts for while nothing fits: moves are tried then without simulating any.
_UNFIT_EVALUATIONS = 16
# Less than this share of a step is rounding, no gain.
_GAIN_FRACTION = 1e-12


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
def _next_move(cursor: Any, count: int) -> None:
    """Goes on to the other direction, then to the next block, then to longer blocks."""
    cursor[_STEP] = -cursor[_STEP]
    if cursor[_STEP] == 1:
        cursor[_START] += 1
        if cursor[_START] + cursor[_LENGTH] > count:
            cursor[_START] = 1
            cursor[_LENGTH] = cursor[_LENGTH] + 1 if cursor[_LENGTH] + 1 < count else 1


@inner
def _try_move(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any,
    cursor: Any, state: Any,
) -> bool:  # fmt: skip
    """Makes the move at the cursor if that is better, and tells so; else changes nothing.

    A block of no cuts moves nothing: then the cuts as they are count as the move.
    """
    first, length, step = cursor[_START], cursor[_LENGTH], cursor[_STEP]
    if length > 0 and not shift(offsets, first, length, step):
        return False
    pieces = room[0]
    low, high = (first - 1, first + length) if length > 0 else (0, pieces.shape[1])
    over = excess(problem, offsets)
    fill_pieces(problem, offsets, low, high, pieces)
    if over == 0.0:
        target_s = state[_STEP_S] * (1.0 - _GAIN_FRACTION)
        micro_batches = schedule[0][MICRO_BATCHES]
        if least_step_s(pieces, problem[4].shape[0], micro_batches) < target_s:
            moved_s = step_s(schedule, blocking, room, target_s)
            cursor[LEFT] -= 1
            if moved_s < target_s:
                state[_STEP_S], state[_EXCESS] = moved_s, 0.0
                return True
    elif over < state[_EXCESS]:
        state[_EXCESS] = over
        return True
    shift(offsets, first, length, -step)
    fill_pieces(problem, offsets, low, high, pieces)
    return False


@inner
def _improve(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any,
    cursor: Any, state: Any,
) -> float:  # fmt: skip
    """Returns the step time where no move helps any more, or the budget ends; as `improve`."""
    count = room[0].shape[1]
    state[_EXCESS], state[_STEP_S] = inf, inf
    cursor[_START], cursor[_LENGTH], cursor[_STEP] = 1, 0, 1
    failed = 0
    while failed < count * (count - 1) + 1 and cursor[LEFT] > 0:
        if _try_move(step_s, problem, schedule, blocking, offsets, room, cursor, state):
            failed = 0
            cursor[_LENGTH] = max(cursor[_LENGTH], 1)
        else:
            failed += 1
            _next_move(cursor, count)
    return state[_STEP_S]


@inner
def draw(cursor: Any, below: int) -> int:
    """Returns a number from 0 that is less than `below`; the seed moves on."""
    # The constants of the C standard's example generator; its high bits are the random ones.
    cursor[SEED] = (cursor[SEED] * 1103515245 + 12345) & 0x7FFFFFFF
    return (cursor[SEED] >> 8) % below


_IMPROVE = float64(
    *(STEP, PROBLEM, SCHEDULE, float64, int64[::1], ROOM),
    *(int64[::1], float64[::1], int64[::1], boolean),
)
# `improve` as other kernels get it.
IMPROVE: Any = types.FunctionType(_IMPROVE)


@compiled(_IMPROVE)
def improve(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any,
    cursor: Any, state: Any, spare: Any, is_thrown: bool,
) -> float:  # fmt: skip
    """Returns the step time of the best cuts found from `offsets`, and leaves those there.

    It is inf where no fitting cuts were found: then the least overfull ones are left.
    `cursor[LEFT]` is what may still be simulated, and is counted down. Cuts are also thrown off
    what is found while the budget lasts, if that is asked for.
    """
    count = room[0].shape[1]
    best_s = inf
    copy(offsets, spare)
    while True:
        found_s = _improve(step_s, problem, schedule, blocking, spare, room, cursor, state)
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
