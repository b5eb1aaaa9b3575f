"""The compiled search over orders of devices, each with the cuts that suit it best.

Orders to begin with come from outside. Each gets the exact cuts of the closed form, or brings its
own, and a short cut search by the simulated step; the best of them a longer one. From the best,
orders are then annealed by swapping two stages, moving one or reversing several; a new order
keeps the cuts it inherits where those are better than its exact ones.
"""

from math import inf
from typing import Any

from numba import float64, int64, types

from apss_jax.native import compiled, inner
from apss_jax.partitioning.flow_kernels import (
    IN_FLIGHT,
    LINK,
    MICRO_BATCHES,
    ROOM,
    ROW,
    SAVED,
    SCHEDULE,
    STATES,
    STEP,
    fill_pieces,
)
from apss_jax.partitioning.kernels import ENDING, GRADIENT, MEMORY, ROUNDS, SOLVE, TIME
from apss_jax.partitioning.search_kernels import IMPROVE, LEFT, copy, draw, excess

# What exact cuts of one order count for, in simulated steps.
_SOLVE_EVALUATIONS = 4
# The cut search of a new order, in simulated steps at most, and how near it must be to deserve one.
_SHORT = 60
_NEAR_FRACTION = 0.06
# The step by which an order may be worse and still be gone on from, at the start of annealing.
_WARM_FRACTION = 0.03
# Entries of the plan: what the short, the long and the last search of cuts may simulate, how many
# orders get a long one, and what all together may.
_BRIEF, _LONG, _NUM_LONG, _TOTAL = range(4)
# Rows of the orders and offsets in work: the one at hand, the one annealing is at, the best.
_TRIAL, _HERE, _BEST = range(3)

_tuple: Any = types.Tuple
# Entries of other kernels: `step_s`, `improve`, `solve`. Each is an argument of `arrange`, as numba
# takes functions from Python in no other way; compiled code passes them on in one tuple.
ENTRIES = (STEP, IMPROVE, SOLVE)
# Allowed bytes, stages of a node and counts of each type.
DEVICES = _tuple((float64[::1], int64[::1], int64[::1]))
# Room of the exact cuts: tables, boxes, work, starts, costs, limits, cuts.
EXACT_ROOM = _tuple(
    (
        *(float64[:, :, ::1], float64[:, ::1], int64[:, ::1], int64[:, ::1], float64[:, ::1]),
        *(float64[::1], int64[::1]),
    )
)
# Orders and offsets in work, used stages of each type, spare offsets, the cursor, the share of a
# transfer that blocks.
OWN_ROOM = _tuple((int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], float64))
ROOMS = _tuple((ROOM, EXACT_ROOM, OWN_ROOM))
# Orders to begin with, the offsets of their pieces, and their steps.
STARTS = _tuple((int64[:, ::1], int64[:, ::1], float64[::1]))
PROBLEM = _tuple(
    (float64[:, :, ::1], float64[:, ::1], float64[:, ::1], int64[:, ::1], float64[::1])
)


@inner
def _place(problem: Any, devices: Any, order: Any, used: Any) -> None:
    """Makes the problem that of an order."""
    places, allowed = problem[3], problem[4]
    limits, node_stages, counts = devices
    for kind in range(used.size):
        used[kind] = 0
    for stage in range(order.size):
        kind = order[stage]
        places[ROW, stage], allowed[stage] = kind, limits[kind]
        used[kind] += 1
        if stage + 1 < order.size:
            after = order[stage + 1]
            places[LINK, stage] = kind * counts.size + after
            if after == kind and used[kind] % node_stages[kind] > 0:
                places[LINK, stage] = counts.size * counts.size + kind


@inner
def _fill_tables(problem: Any, micro_batches: int, tables: Any) -> None:
    """Writes the problem as the exact partitioner reads it."""
    sums, sent, held, places, allowed = problem
    for stage in range(places.shape[1]):
        row, kept = places[ROW, stage], places[IN_FLIGHT, stage]
        for end in range(sums.shape[2]):
            time_s = sums[0, row, end] + sums[1, row, end]
            tables[TIME, stage, end] = time_s
            tables[ROUNDS, stage, end] = (micro_batches - 1) * time_s
            tables[GRADIENT, stage, end] = sums[2, row, end]
            kept_bytes = held[STATES, end] + kept * held[SAVED, end]
            tables[MEMORY, stage, end] = kept_bytes / max(allowed[stage], 1.0)
            tables[ENDING, stage, end] = 0.0
            if stage + 1 < places.shape[1]:
                tables[ENDING, stage, end] = 2.0 * sent[places[LINK, stage], end]


@inner
def _solve_exactly(
    solve: Any, problem: Any, micro_batches: int, exact_room: Any, offsets: Any
) -> bool:
    """Writes the exact cuts of the closed form; False if none fit."""
    tables, boxes, work, start_of, cost_s, limits, cuts = exact_room
    _fill_tables(problem, micro_batches, tables)
    if not solve(tables, boxes, work, start_of, cost_s, limits, cuts) < inf:
        return False
    offsets[0], offsets[offsets.size - 1] = 0, tables.shape[2] - 1
    for cut in range(cuts.size):
        offsets[cut + 1] = cuts[cut] + 1
    return True


@inner
def _simulated_s(
    step_s: Any, problem: Any, schedule: Any, blocking: float, offsets: Any, room: Any
) -> float:
    """Returns the step of some offsets; inf if they do not fit."""
    if excess(problem, offsets) > 0.0:
        return inf
    fill_pieces(problem, offsets, 0, room[0].shape[1], room[0])
    return step_s(schedule, blocking, room, inf)


@inner
def _begin(
    entries: Any, problem: Any, schedule: Any, devices: Any, plan: Any, rooms: Any, starts: Any
) -> None:
    """Scores the orders to begin with; those without offsets of their own get exact ones."""
    step_s, improve, solve = entries
    room, exact_room, own = rooms
    orders, offsets, scores_s = starts
    cursor, micro_batches = own[4], schedule[0][MICRO_BATCHES]
    for row in range(orders.shape[0]):
        scores_s[row] = inf
        if plan[_TOTAL] <= 0:
            continue
        _place(problem, devices, orders[row], own[2])
        if offsets[row, orders.shape[1]] == 0:
            plan[_TOTAL] -= _SOLVE_EVALUATIONS
            if not _solve_exactly(solve, problem, micro_batches, exact_room, offsets[row]):
                continue
        cursor[LEFT] = min(plan[_BRIEF], max(plan[_TOTAL], 1))
        plan[_TOTAL] -= cursor[LEFT]
        scores_s[row] = improve(
            *(step_s, problem, schedule, own[5], offsets[row], room),
            *(cursor, own[3], False),
        )
        plan[_TOTAL] += cursor[LEFT]


@inner
def _bring_best(starts: Any, first: int) -> None:
    """Swaps the best of the rows from `first` on into its place."""
    orders, offsets, scores_s = starts
    best = first
    for row in range(first + 1, scores_s.size):
        if scores_s[row] < scores_s[best]:
            best = row
    scores_s[first], scores_s[best] = scores_s[best], scores_s[first]
    for place in range(orders.shape[1]):
        orders[first, place], orders[best, place] = orders[best, place], orders[first, place]
    for place in range(offsets.shape[1]):
        offsets[first, place], offsets[best, place] = offsets[best, place], offsets[first, place]


@inner
def _continue(
    entries: Any, problem: Any, schedule: Any, devices: Any, plan: Any, rooms: Any, starts: Any
) -> None:
    """Searches the cuts of the best orders for longer."""
    step_s, improve, _ = entries
    room, _, own = rooms
    orders, offsets, scores_s = starts
    cursor = own[4]
    for row in range(min(plan[_NUM_LONG], scores_s.size)):
        _bring_best(starts, row)
        if plan[_TOTAL] <= 0 or scores_s[row] == inf:
            break
        _place(problem, devices, orders[row], own[2])
        cursor[LEFT] = min(plan[_LONG], plan[_TOTAL])
        plan[_TOTAL] -= cursor[LEFT]
        scores_s[row] = improve(
            *(step_s, problem, schedule, own[5], offsets[row], room),
            *(cursor, own[3], True),
        )
        plan[_TOTAL] += cursor[LEFT]


@inner
def _change(order: Any, used: Any, counts: Any, cursor: Any) -> None:
    """Swaps two stages, moves one, reverses several, or takes a device that is to spare."""
    stages = order.size
    kind, first, second = draw(cursor, 4), draw(cursor, stages), draw(cursor, stages)
    if kind == 0:
        order[first], order[second] = order[second], order[first]
    elif kind == 1:
        moved, step = order[first], 1 if second > first else -1
        while first != second:
            order[first] = order[first + step]
            first += step
        order[second] = moved
    elif kind == 2:
        low, high = min(first, second), max(first, second)
        while low < high:
            order[low], order[high] = order[high], order[low]
            low, high = low + 1, high - 1
    else:
        spare = draw(cursor, counts.size)
        if used[spare] < counts[spare]:
            order[first] = spare


@inner
def _try_order(
    entries: Any, problem: Any, schedule: Any, devices: Any, rooms: Any, here_s: float, most: int
) -> float:
    """Returns the step of the order at hand with the best cuts that a short search finds."""
    step_s, improve, solve = entries
    room, exact_room, own = rooms
    orders, offsets, used, spare, cursor, blocking = own
    _place(problem, devices, orders[_TRIAL], used)
    copy(offsets[_HERE], spare)
    own_s = _simulated_s(step_s, problem, schedule, blocking, spare, room)
    new_s = inf
    if _solve_exactly(solve, problem, schedule[0][MICRO_BATCHES], exact_room, offsets[_TRIAL]):
        new_s = _simulated_s(step_s, problem, schedule, blocking, offsets[_TRIAL], room)
    if own_s < new_s:
        copy(spare, offsets[_TRIAL])
        new_s = own_s
    cursor[LEFT] = most
    if new_s < here_s * (1.0 + _NEAR_FRACTION):
        new_s = improve(
            *(step_s, problem, schedule, own[5], offsets[_TRIAL], room),
            *(cursor, spare, False),
        )
    return new_s


@inner
def _anneal(
    entries: Any, problem: Any, schedule: Any, devices: Any, plan: Any, rooms: Any, best_s: float
) -> float:
    """Returns the step of the best order found from the one held, and leaves that one there."""
    orders, offsets, used, _, cursor, _ = rooms[2]
    here_s, whole = best_s, plan[_TOTAL]
    copy(orders[_BEST], orders[_HERE])
    copy(offsets[_BEST], offsets[_HERE])
    while plan[_TOTAL] > 0:
        copy(orders[_HERE], orders[_TRIAL])
        for kind in range(used.size):
            used[kind] = 0
        for stage in range(orders.shape[1]):
            used[orders[_TRIAL, stage]] += 1
        _change(orders[_TRIAL], used, devices[2], cursor)
        plan[_TOTAL] -= 1
        same = True
        for stage in range(orders.shape[1]):
            same = same and orders[_TRIAL, stage] == orders[_HERE, stage]
        if same:
            continue
        most = min(_SHORT, max(plan[_TOTAL], 1))
        new_s = _try_order(entries, problem, schedule, devices, rooms, here_s, most)
        plan[_TOTAL] -= 1 + _SOLVE_EVALUATIONS + most - cursor[LEFT]
        warmth = _WARM_FRACTION * max(plan[_TOTAL], 0) / whole * draw(cursor, 1024) / 1024.0
        if new_s < here_s * (1.0 + warmth):
            here_s = new_s
            copy(orders[_TRIAL], orders[_HERE])
            copy(offsets[_TRIAL], offsets[_HERE])
        if new_s < best_s:
            best_s = new_s
            copy(orders[_TRIAL], orders[_BEST])
            copy(offsets[_TRIAL], offsets[_BEST])
    return best_s


@compiled(float64(*ENTRIES, PROBLEM, SCHEDULE, DEVICES, int64[::1], ROOMS, STARTS))
def arrange(
    step_s: Any, improve: Any, solve: Any, problem: Any, schedule: Any, devices: Any, plan: Any,
    rooms: Any, starts: Any,
) -> float:  # fmt: skip
    """Returns the least simulated step; leaves its order and offsets in the best rows of `own`.

    Offsets of orders to begin with that end in 0 are still to be found. Where no order is to get
    a long search, it ends when all have their score.
    """
    entries = (step_s, improve, solve)
    room, _, own = rooms
    orders, offsets, scores_s = starts
    _begin(entries, problem, schedule, devices, plan, rooms, starts)
    if plan[_NUM_LONG] == 0:
        return scores_s.min()
    _continue(entries, problem, schedule, devices, plan, rooms, starts)
    row = scores_s.argmin()
    if scores_s[row] == inf:
        return inf
    copy(orders[row], own[0][_BEST])
    copy(offsets[row], own[1][_BEST])
    last = min(plan[_LONG], plan[_TOTAL] // 4)
    plan[_TOTAL] -= last
    best_s = _anneal(entries, problem, schedule, devices, plan, rooms, scores_s[row])
    _place(problem, devices, own[0][_BEST], own[2])
    own[4][LEFT] = last
    if last > 0:
        best_s = improve(
            *(step_s, problem, schedule, own[5], own[1][_BEST], room),
            *(own[4], own[3], True),
        )
    return best_s
