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
numba optimises a function again inside each entry that calls it, so that what several entries need
is an entry of its own, and they get its address. None makes a view of an array or passes one on in
an inner loop: counting the references takes longer than the loop itself.
"""

from math import inf, nan
from typing import Any

import numpy as np
from numba import float64, int64, types, void

from apss_jax.native import compiled, inner

# The tables of one problem, each [stages, offsets]. ENDING is the cost of the boundary that a stage
# ending there has; the others are prefix sums: layers [a, b) of a stage have `x[b] - x[a]`.
TIME, ENDING, ROUNDS, GRADIENT, MEMORY = range(5)
NUM_TABLES = 5

# Differences below this share of a figure are rounding, not another solution.
_TIE_FRACTION = 1e-12
# A threshold that only bounds the search needs no more digits, and never more halvings.
THRESHOLD_FRACTION = 1e-3
MAX_HALVINGS = 40

# Rows of the work table: where each stage can start at the earliest and latest (the last layer's
# end follows the last stage), the queue, and where each stage of the partition found last ends.
_FIRST, _LAST, _QUEUE, _ENDS = range(4)

# Columns of the table of open boxes; a low and a high limit each for rounds and for gradients.
BOUND, LOW, HIGH = 0, 1, 3
BOX_COLUMNS = 5


@inner
def _reach(tables: Any, limits: Any, stage: int, anchor: int, stop: int, step: int) -> int:
    """Returns how far a stage with one end at `anchor` reaches towards `stop` within the limits."""
    end = anchor
    while (
        end != stop
        and abs(tables[ROUNDS, stage, end + step] - tables[ROUNDS, stage, anchor]) <= limits[0]
        and abs(tables[GRADIENT, stage, end + step] - tables[GRADIENT, stage, anchor]) <= limits[1]
        and abs(tables[MEMORY, stage, end + step] - tables[MEMORY, stage, anchor]) <= 1.0
    ):
        end += step
    return end


@inner
def _fill(tables: Any, limits: Any, work: Any) -> bool:
    """Finds where each stage can start and end by filling stages forwards, then backwards.

    False proves that no partition keeps within the limits.
    """
    stages, layers = tables.shape[1], tables.shape[2] - 1
    work[_LAST, 0], work[_FIRST, stages] = 0, layers
    for stage in range(stages):
        most = layers - stages + stage + 1
        work[_LAST, stage + 1] = _reach(tables, limits, stage, work[_LAST, stage], most, 1)
        if work[_LAST, stage + 1] <= stage:
            return False
    if work[_LAST, stages] < layers:
        return False
    for stage in range(stages - 1, -1, -1):
        work[_FIRST, stage] = _reach(tables, limits, stage, work[_FIRST, stage + 1], stage, -1)
    return work[_FIRST, 0] == 0


@inner
def _run_pass(tables: Any, limits: Any, work: Any, start_of: Any, cost_s: Any) -> float:
    """Returns the least sum of times within the limits, or inf, after `_fill`.

    Row `stage % 2` of `cost_s` has the best partitions into `stage` stages by where they end; what
    enters the queue is lowered by the time of all layers before.
    """
    cost_s[0, 0] = 0.0
    for stage in range(tables.shape[1]):
        row, after = stage % 2, 1 - stage % 2
        head, tail, pushed = 0, 0, work[_FIRST, stage]
        for end in range(work[_FIRST, stage + 1], work[_LAST, stage + 1] + 1):
            while pushed < end and pushed <= work[_LAST, stage]:
                cost_s[row, pushed] -= tables[TIME, stage, pushed]
                while tail > head and cost_s[row, work[_QUEUE, tail - 1]] >= cost_s[row, pushed]:
                    tail -= 1
                work[_QUEUE, tail] = pushed
                tail += 1
                pushed += 1
            while head < tail and (
                tables[ROUNDS, stage, end] - tables[ROUNDS, stage, work[_QUEUE, head]] > limits[0]
                or tables[GRADIENT, stage, end] - tables[GRADIENT, stage, work[_QUEUE, head]]
                > limits[1]
                or tables[MEMORY, stage, end] - tables[MEMORY, stage, work[_QUEUE, head]] > 1.0
            ):
                head += 1
            cost_s[after, end] = inf
            if head < tail:
                start = work[_QUEUE, head]
                start_of[stage, end] = start
                time_s = tables[TIME, stage, end] + tables[ENDING, stage, end]
                cost_s[after, end] = cost_s[row, start] + time_s
    return cost_s[tables.shape[1] % 2, tables.shape[2] - 1]


@inner
def _trace(tables: Any, limits: Any, work: Any, start_of: Any) -> None:
    """Leaves where the stages of the partition found last end in `work`, its loads in `limits`."""
    limits[0], limits[1] = 0.0, 0.0
    end = tables.shape[2] - 1
    for stage in range(tables.shape[1] - 1, -1, -1):
        start = start_of[stage, end]
        work[_ENDS, stage] = end
        for kind in range(2):
            load_s = tables[ROUNDS + kind, stage, end] - tables[ROUNDS + kind, stage, start]
            limits[kind] = load_s if load_s > limits[kind] else limits[kind]
        end = start


@inner
def _open_boxes(tables: Any, limits: Any, work: Any, boxes: Any) -> int:
    """Writes the boxes that hold all limits together; returns how many.

    They are split where one load is as small as it can be while the other is free: two passes that
    give a good incumbent at once. Below that least load no partition fits.
    """
    for kind in range(2):
        low_s, high_s = 0.0, 0.0
        for stage in range(tables.shape[1]):
            high_s += tables[ROUNDS + kind, stage, tables.shape[2] - 1]
        limits[1 - kind] = inf
        for _ in range(MAX_HALVINGS):
            if high_s - low_s <= THRESHOLD_FRACTION * high_s:
                break
            limits[kind] = 0.5 * (low_s + high_s)
            if _fill(tables, limits, work):
                high_s = limits[kind]
            else:
                low_s = limits[kind]
        for row in range(3):
            boxes[row, LOW + kind] = high_s if row > kind else low_s
            boxes[row, HIGH + kind] = high_s if row == kind else inf
            boxes[row, BOUND] = boxes[row, LOW] + boxes[row, LOW + 1]
    if boxes[1, HIGH + 1] > 0.0:
        return 3
    boxes[1, HIGH + 1] = inf
    return 2


@inner
def take_best(boxes: Any, count: int, incumbent_s: float, limits: Any) -> bool:
    """Moves the box with the least bound to the last row, and the last box into its place.

    Its upper limits are lowered to where a load alone would reach the incumbent, and copied. False
    if no box is below the incumbent.
    """
    best, last = 0, boxes.shape[0] - 1
    for row in range(1, count):
        if boxes[row, BOUND] < boxes[best, BOUND]:
            best = row
    for column in range(BOX_COLUMNS):
        boxes[last, column] = boxes[best, column]
        boxes[best, column] = boxes[count - 1, column]
    for kind in range(2):
        high_s = boxes[last, LOW + kind] + (incumbent_s - boxes[last, BOUND])
        limits[kind] = high_s if high_s < boxes[last, HIGH + kind] else boxes[last, HIGH + kind]
        boxes[last, HIGH + kind] = limits[kind]
    return boxes[last, BOUND] < incumbent_s * (1.0 - _TIE_FRACTION)


@inner
def split(boxes: Any, found_s: Any, pass_s: float, count: int) -> int:
    """Appends the parts of the last row's box that the partition found does not dominate."""
    last = boxes.shape[0] - 1
    for kind in range(2):
        below_s = found_s[kind] * (1.0 - _TIE_FRACTION)
        if below_s <= 0.0 or below_s < boxes[last, LOW + kind]:
            continue
        for column in range(BOX_COLUMNS):
            boxes[count, column] = boxes[last, column]
        boxes[count, BOUND] = pass_s + boxes[last, LOW] + boxes[last, LOW + 1]
        boxes[count, HIGH + kind] = below_s
        count += 1
        # The part below is appended: what is left has at least this load.
        low_s = boxes[last, LOW + kind]
        boxes[last, LOW + kind] = found_s[kind] if found_s[kind] > low_s else low_s
    return count


_SOLVE = float64(
    *(float64[:, :, ::1], float64[:, ::1], int64[:, ::1], int64[:, ::1]),
    *(float64[:, ::1], float64[::1], int64[::1]),
)
# `solve` as other kernels get it: called by its address, it is not compiled again inside them.
SOLVE: Any = types.FunctionType(_SOLVE)


@compiled(_SOLVE)
def solve(
    tables: Any, boxes: Any, work: Any, start_of: Any, cost_s: Any, limits: Any, cuts: Any
) -> float:
    """Returns the least objective and writes its `cuts`.

    It is inf where no partition fits the memory, nan where the search needs more rows of `boxes`.
    The arrays between `tables` and `cuts` are room to work in; compiling their allocation would
    take longer than a search.
    """
    count, incumbent_s = _open_boxes(tables, limits, work, boxes), inf
    while count > 0 and take_best(boxes, count, incumbent_s, limits):
        count -= 1
        if not _fill(tables, limits, work):
            continue
        pass_s = _run_pass(tables, limits, work, start_of, cost_s)
        if pass_s == inf:
            continue
        _trace(tables, limits, work, start_of)
        score_s = pass_s + limits[0] + limits[1]
        if score_s < incumbent_s:
            incumbent_s = score_s
            for cut in range(cuts.size):
                cuts[cut] = work[_ENDS, cut] - 1
        count = split(boxes, limits, pass_s, count)
        if count + 3 > boxes.shape[0]:
            return nan
    return incumbent_s


def workspace(stages: int, offsets: int, num_boxes: int) -> tuple[Any, ...]:
    """Returns the arrays that `solve` works in, in the order of its arguments."""
    return (
        np.empty((num_boxes, BOX_COLUMNS)),
        np.empty((4, offsets), np.int64),
        np.empty((stages, offsets), np.int64),
        np.empty((2, offsets)),
        np.empty(2),
    )


@compiled(void(float64[:, :, :, ::1], int64))
def sum_up(tables: Any, kind: int) -> None:
    """Turns what each layer adds to one of the tables into prefix sums."""
    for problem in range(tables.shape[0]):
        for stage in range(tables.shape[2]):
            for end in range(1, tables.shape[3]):
                tables[problem, kind, stage, end] += tables[problem, kind, stage, end - 1]
