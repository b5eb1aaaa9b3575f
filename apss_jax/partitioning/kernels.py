"""The compiled inner loops of the exact partitioner: one pass, and the search over its limits.

A partition costs the sum of its stage times and of its boundaries, plus the largest of each of two
*loads* of its stages: the time of the further micro-batches, and the gradient reduction. A third
load is the share of the stage's memory, which may not exceed one.

One *pass* finds the least sum when no load may exceed its limit. Loads grow with the interval of
layers, so the legal starts of a stage that ends at `end` form a window, and the pass is a
sliding-window minimum: O(stages * layers) with a monotone queue.

The search then looks for the best pair of limits. A *box* holds the pairs that are still open; the
pass at its upper corner bounds everything inside from below, and the solution found there splits
off what it dominates. Boxes are taken best bound first until none is below the incumbent.

Few and plain functions on plain arrays: a first use compiles them all, which must stay quick.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import float64, int64, njit, void

# The tables of one problem, each [stages, offsets]. ENDING is the cost of the boundary that a stage
# ending there has; the others are prefix sums: layers [a, b) of a stage have `x[b] - x[a]`.
TIME, ENDING, ROUNDS, GRADIENT, MEMORY = range(5)
NUM_TABLES = 5

# Differences below this share of a figure are rounding, not another solution.
_TIE_FRACTION = 1e-12
# A threshold that only bounds the search needs no more digits, and never more halvings.
_THRESHOLD_FRACTION = 1e-3
_MAX_HALVINGS = 40

# Rows of the work table: where each stage can start at the earliest and latest (the last layer's
# end follows the last stage), the queue, and where each stage of the partition found last ends.
_FIRST, _LAST, _QUEUE, _ENDS = range(4)

# Columns of the table of open boxes; a low and a high limit each for rounds and for gradients.
_BOUND, _LOW, _HIGH = 0, 1, 3
_COLUMNS = 5


# Called by compiled code alone: a way in from Python would only take time to compile.
_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_inner = njit(**_NO_WRAPPERS)


@_inner
def _fits(tables: Any, limits: Any, stage: int, start: int, end: int) -> bool:
    return (
        tables[ROUNDS, stage, end] - tables[ROUNDS, stage, start] <= limits[0]
        and tables[GRADIENT, stage, end] - tables[GRADIENT, stage, start] <= limits[1]
        and tables[MEMORY, stage, end] - tables[MEMORY, stage, start] <= 1.0
    )


@_inner
def _fill(tables: Any, limits: Any, work: Any) -> bool:
    """Finds where each stage can start and end by filling stages forwards, then backwards.

    False proves that no partition keeps within the limits.
    """
    stages, layers = tables.shape[1], tables.shape[2] - 1
    end = int64(0)  # a bare 0 would compile what it is passed to once more
    for stage in range(stages):
        start = end
        while end <= layers - stages + stage and _fits(tables, limits, stage, start, end + 1):
            end += 1
        if end <= stage:
            return False
        work[_LAST, stage + 1] = end
    if end < layers:
        return False
    work[_LAST, 0], work[_FIRST, stages] = 0, layers
    for stage in range(stages - 1, -1, -1):
        start = end
        while start > stage and _fits(tables, limits, stage, start - 1, end):
            start -= 1
        work[_FIRST, stage] = start
        end = start
    return end == 0


@_inner
def _extend(tables: Any, limits: Any, work: Any, start_of: Any, cost_s: Any, stage: int) -> None:
    """Extends the best partitions into `stage` stages by one stage, for each possible end."""
    queue, before, after = work[_QUEUE], cost_s[stage % 2], cost_s[1 - stage % 2]
    head, tail, pushed = 0, 0, work[_FIRST, stage]
    window = pushed
    time_s, ending_s = tables[TIME, stage], tables[ENDING, stage]
    for end in range(work[_FIRST, stage + 1], work[_LAST, stage + 1] + 1):
        stop = min(end, work[_LAST, stage] + 1)
        while pushed < stop:
            value_s = before[pushed] - time_s[pushed]
            while tail > head and before[queue[tail - 1]] - time_s[queue[tail - 1]] >= value_s:
                tail -= 1
            queue[tail] = pushed
            tail += 1
            pushed += 1
        while window < end and not _fits(tables, limits, stage, window, end):
            window += 1
        while head < tail and queue[head] < window:
            head += 1
        after[end] = np.inf
        if head < tail:
            start = queue[head]
            after[end] = before[start] + (time_s[end] - time_s[start]) + ending_s[end]
            start_of[stage, end] = start


@_inner
def _run_pass(tables: Any, limits: Any, work: Any, start_of: Any, cost_s: Any) -> float:
    """Returns the least sum of times within the limits, or inf; leaves its ends in `work`."""
    stages, end = tables.shape[1], tables.shape[2] - 1
    if not _fill(tables, limits, work):
        return np.inf
    cost_s[0, 0] = 0.0
    for stage in range(stages):
        _extend(tables, limits, work, start_of, cost_s, stage)
    total_s = cost_s[stages % 2, end]
    if total_s < np.inf:
        for stage in range(stages - 1, -1, -1):
            work[_ENDS, stage] = end
            end = start_of[stage, end]
    return total_s


@_inner
def _largest(sums: Any, work: Any) -> float:
    """Returns the largest stage of the partition found last."""
    largest_s, start = 0.0, 0
    for stage in range(sums.shape[0]):
        end = work[_ENDS, stage]
        load_s = sums[stage, end] - sums[stage, start]
        largest_s = load_s if load_s > largest_s else largest_s
        start = end
    return largest_s


@_inner
def _open_boxes(tables: Any, limits: Any, work: Any, boxes: Any) -> int:
    """Writes the boxes that hold all limits together; returns how many.

    They are split where one load is as small as it can be while the other is free: two passes that
    give a good incumbent at once. Below that least load no partition fits.
    """
    for kind in range(2):
        low_s, high_s = 0.0, 0.0
        for stage in range(tables.shape[1]):
            high_s += tables[ROUNDS + kind, stage, tables.shape[2] - 1]
        limits[1 - kind] = np.inf
        for _ in range(_MAX_HALVINGS):
            if high_s - low_s <= _THRESHOLD_FRACTION * high_s:
                break
            limits[kind] = 0.5 * (low_s + high_s)
            if _fill(tables, limits, work):
                high_s = limits[kind]
            else:
                low_s = limits[kind]
        for row in range(3):
            boxes[row, _LOW + kind] = high_s if row > kind else low_s
            boxes[row, _HIGH + kind] = high_s if row == kind else np.inf
            boxes[row, _BOUND] = boxes[row, _LOW] + boxes[row, _LOW + 1]
    if boxes[1, _HIGH + 1] > 0.0:
        return 3
    boxes[1, _HIGH + 1] = np.inf
    return 2


@_inner
def _take_best(boxes: Any, count: int) -> None:
    """Moves the box with the least bound to the last row, and the last box into its place."""
    best = 0
    for row in range(1, count):
        if boxes[row, _BOUND] < boxes[best, _BOUND]:
            best = row
    for column in range(_COLUMNS):
        boxes[boxes.shape[0] - 1, column] = boxes[best, column]
        boxes[best, column] = boxes[count - 1, column]


@_inner
def _shrink(box: Any, slack_s: float, limits: Any) -> None:
    """Lowers a box's upper limits to where a load alone would use up the slack; copies them."""
    for kind in range(2):
        high_s = box[_LOW + kind] + slack_s
        box[_HIGH + kind] = min(box[_HIGH + kind], high_s)
        limits[kind] = box[_HIGH + kind]


@_inner
def _split(boxes: Any, box: Any, found_s: Any, pass_s: float, count: int) -> int:
    """Appends the parts of a box that the partition found in its corner does not dominate."""
    for kind in range(2):
        below_s = found_s[kind] * (1.0 - _TIE_FRACTION)
        if below_s <= 0.0 or below_s < box[_LOW + kind]:
            continue
        for column in range(_COLUMNS):
            boxes[count, column] = box[column]
        boxes[count, _BOUND] = pass_s + box[_LOW] + box[_LOW + 1]
        boxes[count, _HIGH + kind] = below_s
        count += 1
        # The part below is appended: what is left has at least this load.
        box[_LOW + kind] = max(box[_LOW + kind], found_s[kind])
    return count


@_inner
def _solve(
    tables: Any, boxes: Any, work: Any, start_of: Any, cost_s: Any, limits: Any, cuts: Any
) -> float:
    """Returns the least objective, inf if nothing fits, nan if the table of boxes is too short."""
    count, incumbent_s = _open_boxes(tables, limits, work, boxes), np.inf
    while count > 0:
        _take_best(boxes, count)
        count -= 1
        box = boxes[boxes.shape[0] - 1]
        if box[_BOUND] >= incumbent_s * (1.0 - _TIE_FRACTION):
            break
        _shrink(box, incumbent_s - box[_BOUND], limits)
        pass_s = _run_pass(tables, limits, work, start_of, cost_s)
        if pass_s == np.inf:
            continue
        limits[0] = _largest(tables[ROUNDS], work)
        limits[1] = _largest(tables[GRADIENT], work)
        score_s = pass_s + limits[0] + limits[1]
        if score_s < incumbent_s:
            incumbent_s = score_s
            for cut in range(cuts.size):
                cuts[cut] = work[_ENDS, cut] - 1
        count = _split(boxes, box, limits, pass_s, count)
        if count + 3 > boxes.shape[0]:
            return np.nan
    return incumbent_s


def _compiled(signature: Any) -> Callable[[Any], Any]:
    """Returns a decorator that compiles for one signature and keeps the result on disk.

    Where neither the package nor the user's cache folder can be written, it compiles in memory.
    """

    def decorate(function: Any) -> Any:
        try:
            return njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:
            return njit(signature, nogil=True)(function)

    return decorate


@_compiled(
    void(
        *(float64[:, :, :, ::1], float64[:, ::1], int64[:, ::1], int64[:, ::1]),
        *(float64[:, ::1], float64[::1], int64[:, ::1], float64[::1]),
    )
)
def solve_stack(
    tables: Any,
    boxes: Any,
    work: Any,
    start_of: Any,
    cost_s: Any,
    limits: Any,
    cuts: Any,
    objective_s: Any,
) -> None:
    """Solves problems of one size, one after another; writes `cuts` and `objective_s`.

    An objective of inf says that no partition fits the memory, one of nan that the search needs
    more rows of `boxes`. The arrays between `tables` and `cuts` are room to work in; compiling
    their allocation would take longer than a search.
    """
    for problem in range(tables.shape[0]):
        objective_s[problem] = _solve(
            tables[problem], boxes, work, start_of, cost_s, limits, cuts[problem]
        )


def workspace(stages: int, offsets: int, num_boxes: int) -> tuple[Any, ...]:
    """Returns the arrays that `solve_stack` works in, in the order of its arguments."""
    return (
        np.empty((num_boxes, _COLUMNS)),
        np.empty((4, offsets), np.int64),
        np.empty((stages, offsets), np.int64),
        np.empty((2, offsets)),
        np.empty(2),
    )
