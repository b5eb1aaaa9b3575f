"""The compiled joint choice of devices and cuts under the closed form.

Equal devices are interchangeable, so what matters of the stages placed so far is how many of each
type they use, and the type of the last one: a node of a lattice of counts. A *pass* finds the least
sum of times and boundaries over all orders and cuts whose loads keep within limits, each step from
one node to the next a sliding-window minimum over where the stage starts. The search over limits is
that of `kernels`: best bound first, until none is below the incumbent.
"""

from math import inf, nan
from typing import Any

from numba import float64, int8, int16, int64, types

from apss_jax.native import compiled, inner
from apss_jax.partitioning.kernels import (
    BOUND,
    HIGH,
    LOW,
    MAX_HALVINGS,
    THRESHOLD_FRACTION,
    split,
    take_best,
)

# Rows of the costs, [rows, device types, offsets], each a sum over the layers before: of one
# micro-batch, of all further ones, and of the tail.
TIME, ROUNDS, GRADIENT = range(3)
# Rows of what is held, [2, offsets].
_STATES, _SAVED = range(2)
# Entries of the sizes.
STAGES, MICRO_BATCHES = range(2)
# Rows of the line, [rows, offsets]: what it costs to start a stage at an offset, less all before.
_COST = 0
# Rows of the marks, [rows, offsets]: the type before that start, and the queue of starts.
_TYPE, _QUEUE = range(2)
# Rows of where the stages of nodes can end, [rows, nodes].
FIRST, LAST = range(2)

_tuple: Any = types.Tuple
# Costs, both messages by link and cut, what is held, what each type may hold.
JOINT = _tuple((float64[:, :, ::1], float64[:, ::1], float64[:, ::1], float64[::1]))
# Counts, stages of a node and stride in the lattice of each type; stages at each lattice node;
# sizes.
GRID = _tuple((int64[::1], int64[::1], int64[::1], int64[::1], int64[::1]))
# Ends, least costs, starts and types before, the line, marks, boxes and limits.
ROOM = _tuple(
    (
        *(int64[:, ::1], float64[:, :, ::1], int16[:, :, ::1], int8[:, :, ::1]),
        *(float64[:, ::1], int64[:, ::1], float64[:, ::1], float64[::1]),
    )
)


@inner
def keeps_within(joint: Any, kind: int, kept: int, start: int, end: int, limits: Any) -> bool:
    """Tells whether a stage of a type keeps within the limits and its memory."""
    costs, _, held, allowed = joint
    used = held[_STATES, end] - held[_STATES, start]
    used += kept * (held[_SAVED, end] - held[_SAVED, start])
    rounds_s = costs[ROUNDS, kind, end] - costs[ROUNDS, kind, start]
    gradient_s = costs[GRADIENT, kind, end] - costs[GRADIENT, kind, start]
    return rounds_s <= limits[0] and gradient_s <= limits[1] and used <= allowed[kind]


@inner
def num_in_flight(grid: Any, stage: int) -> int:
    """Returns the micro-batches that a stage keeps in flight."""
    sizes = grid[4]
    return min(sizes[STAGES] - stage, sizes[MICRO_BATCHES])


@inner
def _reach(joint: Any, kind: int, kept: int, start: int, stop: int, limits: Any) -> int:
    """Returns the last end up to `stop` of a stage from `start`; `start` if there is none."""
    low, high = start, stop
    while low < high:
        middle = (low + high + 1) // 2
        if keeps_within(joint, kind, kept, start, middle, limits):
            low = middle
        else:
            high = middle - 1
    return low


@inner
def _retreat(joint: Any, kind: int, kept: int, end: int, stop: int, limits: Any) -> int:
    """Returns the first start down to `stop` of a stage to `end`; `end` if there is none."""
    low, high = stop, end
    while low < high:
        middle = (low + high) // 2
        if keeps_within(joint, kind, kept, middle, end, limits):
            high = middle
        else:
            low = middle + 1
    return low


@inner
def used_of(grid: Any, node: int, kind: int) -> int:
    """Returns the stages of a type at a node: a digit of its number."""
    return node // grid[2][kind] % (grid[0][kind] + 1)


@inner
def link_of(grid: Any, last: int, kind: int, used: int) -> int:
    """Returns the row of the messages from a type to the next stage's, the `used`-th of its own."""
    num_types = grid[1].size
    is_inside = last == kind and used % grid[1][kind] > 0
    return num_types * num_types + kind if is_inside else last * num_types + kind


@inner
def _fill_forwards(joint: Any, grid: Any, limits: Any, ends: Any) -> None:
    counts, _, strides, levels, sizes = grid
    layers = joint[2].shape[1] - 1
    ends[LAST, 0] = 0
    for node in range(1, levels.size):
        level = levels[node]
        ends[LAST, node] = -1
        for kind in range(counts.size):
            if used_of(grid, node, kind) == 0 or level > sizes[STAGES]:
                continue
            start = ends[LAST, node - strides[kind]]
            if start >= level - 1:
                most, kept = layers - sizes[STAGES] + level, num_in_flight(grid, level - 1)
                end = _reach(joint, kind, kept, start, most, limits)
                if end >= level:
                    ends[LAST, node] = max(ends[LAST, node], end)


@inner
def fill(joint: Any, grid: Any, limits: Any, ends: Any) -> bool:
    """Finds where each node can end, forwards and backwards; False proves that nothing fits."""
    counts, _, strides, levels, sizes = grid
    layers = joint[2].shape[1] - 1
    _fill_forwards(joint, grid, limits, ends)
    for node in range(levels.size - 1, -1, -1):
        level = levels[node]
        ends[FIRST, node] = layers if level == sizes[STAGES] else layers + 1
        for kind in range(counts.size):
            if used_of(grid, node, kind) == counts[kind] or level >= sizes[STAGES]:
                continue
            end = ends[FIRST, node + strides[kind]]
            if end <= ends[LAST, node + strides[kind]]:
                start = _retreat(joint, kind, num_in_flight(grid, level), end, level, limits)
                if start < end:
                    ends[FIRST, node] = min(ends[FIRST, node], start)
    return ends[FIRST, 0] == 0


@inner
def _lines_up(joint: Any, grid: Any, room: Any, node: int, kind: int) -> None:
    """Writes what it costs to start a stage of a type after the stages of a node, where it can."""
    ends, costs_s, _, _, line, marks, _, _ = room
    used, num_types = used_of(grid, node, kind), grid[1].size
    for start in range(ends[FIRST, node], ends[LAST, node] + 1):
        line[_COST, start] = 0.0 if node == 0 else inf
        for last in range(num_types):
            if node == 0 or used_of(grid, node, last) == 0:
                continue
            link = link_of(grid, last, kind, used)
            cost_s = costs_s[node, last, start] + joint[1][link, start]
            if cost_s < line[_COST, start]:
                line[_COST, start] = cost_s
                marks[_TYPE, start] = last
        line[_COST, start] -= joint[0][TIME, kind, start]


@inner
def _add_stage(joint: Any, grid: Any, room: Any, node: int, kind: int) -> None:
    """Writes the least cost of the stages of a node, the last of a type, by where they end."""
    ends, costs_s, starts, befores, line, marks, _, limits = room
    before = node - grid[2][kind]
    _lines_up(joint, grid, room, before, kind)
    kept = num_in_flight(grid, grid[3][before])
    head, tail, pushed = 0, 0, ends[FIRST, before]
    for end in range(ends[FIRST, node], ends[LAST, node] + 1):
        while pushed < end and pushed <= ends[LAST, before]:
            while tail > head and line[_COST, marks[_QUEUE, tail - 1]] >= line[_COST, pushed]:
                tail -= 1
            marks[_QUEUE, tail] = pushed
            tail += 1
            pushed += 1
        while head < tail and not keeps_within(joint, kind, kept, marks[_QUEUE, head], end, limits):
            head += 1
        costs_s[node, kind, end] = inf
        if head < tail:
            start = marks[_QUEUE, head]
            costs_s[node, kind, end] = line[_COST, start] + joint[0][TIME, kind, end]
            starts[node, kind, end] = start
            befores[node, kind, end] = marks[_TYPE, start]


@inner
def run_pass(joint: Any, grid: Any, room: Any, found: Any) -> float:
    """Returns the least sum within the limits, or inf, and the node and type where it ends."""
    levels, sizes = grid[3], grid[4]
    ends, costs_s = room[0], room[1]
    layers, best_s = joint[2].shape[1] - 1, inf
    for node in range(1, levels.size):
        if levels[node] > sizes[STAGES] or ends[FIRST, node] > ends[LAST, node]:
            continue
        for kind in range(joint[3].size):
            if used_of(grid, node, kind) == 0:
                continue
            _add_stage(joint, grid, room, node, kind)
            if levels[node] == sizes[STAGES] and costs_s[node, kind, layers] < best_s:
                best_s = costs_s[node, kind, layers]
                found[0], found[1] = node, kind
    return best_s


@inner
def _trace(joint: Any, grid: Any, room: Any, found: Any, order: Any, offsets: Any) -> None:
    """Writes types and offsets of what the pass found, and leaves its loads in the limits."""
    starts, befores, limits = room[2], room[3], room[7]
    node, kind = found[0], found[1]
    end = joint[2].shape[1] - 1
    limits[0], limits[1] = 0.0, 0.0
    for stage in range(order.size - 1, -1, -1):
        start = starts[node, kind, end]
        order[stage], offsets[stage + 1] = kind, end
        for load in range(2):
            load_s = joint[0][ROUNDS + load, kind, end] - joint[0][ROUNDS + load, kind, start]
            limits[load] = max(limits[load], load_s)
        before = befores[node, kind, end]
        node -= grid[2][kind]
        kind, end = before, start
    offsets[0] = 0


@inner
def _open_boxes(joint: Any, grid: Any, room: Any) -> int:
    """Writes boxes that hold all limits: rounds as short as they can be, and longer ones."""
    boxes, limits = room[6], room[7]
    for load in range(2):
        low_s, high_s = 0.0, 0.0
        for kind in range(joint[0].shape[1]):
            high_s = max(high_s, joint[0][ROUNDS + load, kind, joint[0].shape[2] - 1])
        limits[1 - load] = inf
        for _ in range(MAX_HALVINGS):
            if high_s - low_s <= THRESHOLD_FRACTION * high_s:
                break
            limits[load] = 0.5 * (low_s + high_s)
            if fill(joint, grid, limits, room[0]):
                high_s = limits[load]
            else:
                low_s = limits[load]
        for row in range(2):
            is_long = row == 1 and load == 0
            boxes[row, LOW + load] = high_s if is_long else low_s
            boxes[row, HIGH + load] = high_s if row == 0 and load == 0 else inf
    for row in range(2):
        boxes[row, BOUND] = boxes[row, LOW] + boxes[row, LOW + 1]
    return 2


@compiled(float64(JOINT, GRID, ROOM, int64[:, ::1], int64[:, ::1], float64[::1], int64[::1]))
def solve(
    joint: Any, grid: Any, room: Any, orders: Any, offsets: Any, scores_s: Any, found: Any
) -> float:
    """Returns the least objective; writes what each pass found, and to `found[2]` how many did.

    `found[3]` is how many passes there may be; where they do not suffice, the objective is the
    least found. It is inf where nothing fits, nan where the search needs more boxes. When rows run
    out, the one that scores worst is written over.
    """
    boxes, limits = room[6], room[7]
    count, best_s = _open_boxes(joint, grid, room), inf
    found[2] = 0
    while count > 0 and found[3] > 0 and take_best(boxes, count, best_s, limits):
        count -= 1
        if not fill(joint, grid, limits, room[0]):
            continue
        pass_s = run_pass(joint, grid, room, found)
        found[3] -= 1
        if pass_s == inf:
            continue
        row = found[2]
        if row == scores_s.size:
            row = scores_s.argmax()
        else:
            found[2] += 1
        _trace(joint, grid, room, found, orders[row], offsets[row])
        scores_s[row] = pass_s + limits[0] + limits[1]
        best_s = min(best_s, scores_s[row])
        count = split(boxes, limits, pass_s, count)
        if count + 3 > boxes.shape[0]:
            return nan
    return best_s
