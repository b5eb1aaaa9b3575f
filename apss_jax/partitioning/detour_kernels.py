"""The compiled way back through the lattice: what the best plan through each node takes.

A pass of `lattice_kernels` leaves the least cost of the stages up to each node. The same sliding
windows from the far end give the least cost of those after it; the sum is that of the best plan
which uses so many devices of each type by then, the last stage on a given one.
"""

from math import inf
from typing import Any

from numba import boolean, float64, int64

from apss_jax.native import compiled, inner
from apss_jax.partitioning.lattice_kernels import (
    FIRST,
    GRID,
    JOINT,
    LAST,
    ROOM,
    STAGES,
    TIME,
    fill,
    keeps_within,
    link_of,
    num_in_flight,
    run_pass,
    used_of,
)

# Rows of the line and of the marks, as the pass leaves them to be written over.
_COST, _QUEUE = 0, 1


@inner
def _closed(grid: Any, room: Any, node: int) -> bool:
    """Tells whether no plan within the limits goes through a node."""
    return grid[3][node] > grid[4][STAGES] or room[0][FIRST, node] > room[0][LAST, node]


@inner
def _begin(grid: Any, room: Any, node: int, rest_s: Any) -> None:
    """Writes that nothing is known of what follows a node, or that nothing follows the last."""
    first, last = room[0][FIRST, node], room[0][LAST, node]
    value = 0.0 if grid[3][node] == grid[4][STAGES] else inf
    for kind in range(rest_s.shape[1]):
        for offset in range(first, last + 1):
            rest_s[node, kind, offset] = value


@inner
def _follow(joint: Any, grid: Any, room: Any, rest_s: Any, node: int, kind: int) -> None:
    """Lowers what follows a node to what it takes if the next stage is of a type."""
    ends, line, marks, limits = room[0], room[4], room[5], room[7]
    after, used = node + grid[2][kind], used_of(grid, node, kind)
    kept = num_in_flight(grid, grid[3][node])
    head, tail, pushed = 0, 0, ends[LAST, after]
    for start in range(ends[LAST, node], ends[FIRST, node] - 1, -1):
        while pushed > start and pushed >= ends[FIRST, after]:
            line[_COST, pushed] = joint[0][TIME, kind, pushed] + rest_s[after, kind, pushed]
            while tail > head and line[_COST, marks[_QUEUE, tail - 1]] >= line[_COST, pushed]:
                tail -= 1
            marks[_QUEUE, tail] = pushed
            tail += 1
            pushed -= 1
        while head < tail and not keeps_within(
            joint, kind, kept, start, marks[_QUEUE, head], limits
        ):
            head += 1
        if head < tail:
            own_s = line[_COST, marks[_QUEUE, head]] - joint[0][TIME, kind, start]
            for last in range(grid[1].size):
                sent_s = joint[1][link_of(grid, last, kind, used), start]
                rest_s[node, last, start] = min(rest_s[node, last, start], own_s + sent_s)


@inner
def _lower(grid: Any, room: Any, rest_s: Any, node: int, through_s: Any) -> None:
    """Lowers what the best plan through a node takes, by the type of its last stage."""
    ends, costs_s, limits = room[0], room[1], room[7]
    for kind in range(grid[1].size):
        if used_of(grid, node, kind) > 0:
            for offset in range(ends[FIRST, node], ends[LAST, node] + 1):
                step_s = costs_s[node, kind, offset] + rest_s[node, kind, offset]
                step_s += limits[0] + limits[1]
                through_s[node, kind] = min(through_s[node, kind], step_s)


@inner
def _run_back(joint: Any, grid: Any, room: Any, rest_s: Any, through_s: Any) -> None:
    """Lowers what plans through each node take by those that keep within the limits of a pass."""
    for node in range(grid[3].size - 1, 0, -1):
        if _closed(grid, room, node):
            continue
        _begin(grid, room, node, rest_s)
        for kind in range(grid[1].size):
            is_left = grid[3][node] < grid[4][STAGES]
            is_left = is_left and used_of(grid, node, kind) < grid[0][kind]
            if is_left and not _closed(grid, room, node + grid[2][kind]):
                _follow(joint, grid, room, rest_s, node, kind)
        _lower(grid, room, rest_s, node, through_s)


@compiled(boolean(JOINT, GRID, ROOM, int64[::1], float64[:, :, ::1], float64[:, ::1]))
def lower(joint: Any, grid: Any, room: Any, found: Any, rest_s: Any, through_s: Any) -> bool:
    """Lowers what plans through each node take by the best within the limits of the room.

    Returns whether any plan keeps within them.
    """
    if not fill(joint, grid, room[7], room[0]):
        return False
    run_pass(joint, grid, room, found)
    _run_back(joint, grid, room, rest_s, through_s)
    return True
