"""The compiled part of what the network sees: how far stages reach within limits, and windows.

A *limit* is the most that any piece may take; within it, filling pieces from the front gives the
last place where each piece can end, filling them from the back the first one. The least limit that
a partition keeps to is found by halving. Memory is a limit of its own, always kept: shares of a
piece's capacity that sum to at most one. Everything here is in double precision, so that what fits
is decided exactly; the network then works on 32-bit windows and whole numbers.
"""

from math import inf
from typing import Any, Final

import numpy as np
from numba import float32, float64, int32, int64

from apss_jax.native import compiled, inner

# Tables of one problem, each [pieces, offsets]: layers [a, b) of a piece have `x[b] - x[a]`, but
# ENDING is what the boundary costs after a piece that ends there.
TIME, ENDING, GRADIENT, MEMORY = range(4)
NUM_TABLES: Final = 4

TIME_LEVELS: Final = (1.0, 1.04, 1.12, 1.35, inf)
"""Limits on the time of a piece, relative to the least one; at the last, memory alone is left."""
GRADIENT_LEVELS: Final = (1.02, 1.3)
"""Limits on the gradient work of a piece, relative to the least one."""
NUM_LEVELS: Final = len(TIME_LEVELS) + len(GRADIENT_LEVELS)

# What is kept of each piece for each place of a window.
TIME_END, TIME_START, GRADIENT_END, GRADIENT_START, BOUNDARY = range(5)
NUM_WINDOWS: Final = 5

# What is kept of each problem.
LEAST_TIME, LEAST_TIME_UNLIMITED, LEAST_GRADIENT = range(3)
NUM_LEAST: Final = 3

_CENTER = 1  # the level whose reach windows are centred on
_HALVINGS = 14
_ROUNDING = 1e-9
_CEILING = 1e6  # a boundary that is forbidden costs this many times the least limit
_TIME_LEVELS = np.array(TIME_LEVELS)
_GRADIENT_LEVELS = np.array(GRADIENT_LEVELS)


@inner
def _fill(tables: Any, pieces: int, layers: int, limits: Any, step: int, ends: Any) -> bool:
    """Fills pieces from the front (step 1) or the back (-1); False if layers are left over."""
    end = 0 if step == 1 else layers
    ends[0 if step == 1 else pieces] = end
    for number in range(pieces):
        piece = number if step == 1 else pieces - 1 - number
        start = end
        most = layers - (pieces - 1 - piece) if step == 1 else piece
        while (
            end != most
            and abs(tables[TIME, piece, end + step] - tables[TIME, piece, start]) <= limits[0]
            and abs(tables[GRADIENT, piece, end + step] - tables[GRADIENT, piece, start])
            <= limits[1]
            and abs(tables[MEMORY, piece, end + step] - tables[MEMORY, piece, start]) <= limits[2]
        ):
            end += step
        if end == start:
            return False
        ends[piece + 1 if step == 1 else piece] = end
    return end == (layers if step == 1 else 0)


@inner
def _least(tables: Any, pieces: int, layers: int, limits: Any, kind: int, ends: Any) -> float:
    """Returns the least limit of one kind beside the others; inf if no partition keeps to those."""
    limits[kind] = inf
    if not _fill(tables, pieces, layers, limits, 1, ends):
        return inf
    low, high = 0.0, 0.0
    for piece in range(pieces):
        load = tables[kind * GRADIENT, piece, ends[piece + 1]]
        load -= tables[kind * GRADIENT, piece, ends[piece]]
        high = max(high, load)
    for _ in range(_HALVINGS):
        if high - low <= 1e-4 * high:
            break
        limits[kind] = 0.5 * (low + high)
        if not _fill(tables, pieces, layers, limits, 1, ends):
            low = limits[kind]
            continue
        high = 0.0
        for piece in range(pieces):
            load = tables[kind * GRADIENT, piece, ends[piece + 1]]
            load -= tables[kind * GRADIENT, piece, ends[piece]]
            high = max(high, load)
    return high * (1.0 + _ROUNDING)


@inner
def _reach(
    tables: Any, pieces: int, layers: int, limits: Any, level: int, ends: Any, reach: Any
) -> None:
    for side in range(2):
        _fill(tables, pieces, layers, limits, 1 - 2 * side, ends)
        for piece in range(pieces):
            reach[level, 1 - side, piece] = ends[piece + 1]


@inner
def _origins(pieces: int, layers: int, window: int, reach: Any, ends: Any, origin: Any) -> None:
    """Writes where each piece's window begins; the partition in `ends` lies within all windows."""
    for piece in range(pieces - 1):
        middle = (reach[_CENTER, 0, piece] + reach[_CENTER, 1, piece] + 1) // 2
        most = max(piece + 1, layers - (pieces - 1 - piece) - window + 1)
        begin = min(max(middle - window // 2, piece + 1), most)
        end = ends[piece + 1]
        origin[piece] = min(max(begin, end - window + 1), end)
    origin[pieces - 1] = layers


@inner
def _windows(tables: Any, sizes: Any, origin: Any, units: Any, windows: Any, until: Any) -> None:
    """Writes loads and boundaries at the places of each window, and how far memory lets it go."""
    pieces, layers, width = sizes[0], sizes[1], windows.shape[2]
    for piece in range(pieces):
        before = origin[piece - 1] if piece else 0
        base = min(before + width // 2, layers) if piece else 0
        end = before
        for place in range(width):
            here, start = min(origin[piece] + place, layers), min(before + place, layers)
            for kind in range(2):
                zero = tables[kind * GRADIENT, piece, base]
                value = tables[kind * GRADIENT, piece, here] - zero
                windows[piece, 2 * kind, place] = value / units[kind]
                value = tables[kind * GRADIENT, piece, start] - zero
                windows[piece, 2 * kind + 1, place] = value / units[kind]
            cost = tables[ENDING, piece, here] / units[0]
            windows[piece, BOUNDARY, place] = min(cost, _CEILING)
            end = max(end, start)
            while (
                end < layers
                and tables[MEMORY, piece, end + 1] - tables[MEMORY, piece, start] <= 1.0
            ):
                end += 1
            until[piece, place] = end


@inner
def _level_times(tables: Any, pieces: int, reach: Any, unit: float, times: Any) -> None:
    """Writes what each reach is away from the centre, as time on the piece."""
    for piece in range(pieces):
        middle = (reach[_CENTER, 0, piece] + reach[_CENTER, 1, piece] + 1) // 2
        zero = tables[TIME, piece, middle]
        for level in range(reach.shape[0]):
            for side in range(2):
                value = tables[TIME, piece, reach[level, side, piece]] - zero
                times[level, side, piece] = value / unit


@compiled(
    int64(
        *(float64[:, :, ::1], int64[::1], float64[::1], int64[::1]),
        *(float64[::1], int32[::1], int32[:, :, ::1], float32[:, :, ::1]),
        *(float32[:, :, ::1], int32[:, ::1]),
    )
)
def prepare(
    tables: Any,
    sizes: Any,
    limits: Any,
    ends: Any,
    least: Any,
    origin: Any,
    reach: Any,
    times: Any,
    windows: Any,
    until: Any,
) -> int:
    """Writes all that is known of one problem; returns 0 if no partition fits the memory.

    `sizes` are pieces and layers; `limits` [3] and `ends` [pieces + 1] are room to work in; the
    arrays from `least` on are results, sized for at least as many pieces.
    """
    pieces, layers = sizes[0], sizes[1]
    limits[1], limits[2] = inf, inf
    least[LEAST_TIME_UNLIMITED] = _least(tables, pieces, layers, limits, 0, ends)
    limits[2] = 1.0
    least[LEAST_TIME] = _least(tables, pieces, layers, limits, 0, ends)
    if least[LEAST_TIME] == inf:
        return 0
    limits[0] = inf
    least[LEAST_GRADIENT] = _least(tables, pieces, layers, limits, 1, ends)
    limits[1] = inf
    for level in range(len(_TIME_LEVELS)):
        limits[0] = least[LEAST_TIME] * _TIME_LEVELS[level]
        _reach(tables, pieces, layers, limits, level, ends, reach)
    limits[0] = inf
    for level in range(len(_GRADIENT_LEVELS)):
        limits[1] = least[LEAST_GRADIENT] * _GRADIENT_LEVELS[level]
        _reach(tables, pieces, layers, limits, len(_TIME_LEVELS) + level, ends, reach)
    limits[0], limits[1] = least[LEAST_TIME], inf
    _fill(tables, pieces, layers, limits, 1, ends)
    _origins(pieces, layers, windows.shape[2], reach, ends, origin)
    limits[0] = least[LEAST_TIME] if least[LEAST_TIME] > 0.0 else 1.0
    limits[1] = least[LEAST_GRADIENT] if least[LEAST_GRADIENT] > 0.0 else 1.0
    _windows(tables, sizes, origin, limits, windows, until)
    _level_times(tables, pieces, reach, limits[0], times)
    return 1
