"""How step times answer to a question, as a small picture: a line for each plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import Final

from apss_jax.report.figures import duration, significant
from apss_jax.schema.detail import Sensitivity

WIDTH, HEIGHT = 340, 200  # in the drawing's own units, as all below
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 10, 26
MOST_LINES: Final = 5
Point = tuple[float, float]


def curve_picture(found: Sensitivity) -> str:
    """Returns the picture: values doubling to the right, step times upwards from 0."""
    values = [point.value for point in found.points]
    known = [s for point in found.points for s in point.step_time_s[:MOST_LINES] if s]
    if not known:
        return ""
    top_s = max(known)
    parts = [
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Step time by '
        f'{found.name}">',
        *_grid(top_s),
        *_labels(values, found),
    ]
    lines = min(MOST_LINES, len(found.points[0].step_time_s))
    for rank in reversed(range(lines)):  # the first plan lies on top
        points = [
            (_x(point.value, values), _y(step_s, top_s))
            for point in found.points
            if (step_s := point.step_time_s[rank]) is not None
        ]
        parts += _line(points, rank)
    return "".join([*parts, "</svg>"])


def _x(value: float, values: Sequence[float]) -> float:
    low, high = log2(values[0]), log2(values[-1])
    share = (log2(value) - low) / (high - low) if high > low else 0.5
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(step_s: float, top_s: float) -> float:
    return HEIGHT - BOTTOM - step_s / top_s * (HEIGHT - TOP - BOTTOM)


def _grid(top_s: float) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = _y(share * top_s, top_s)
        text = duration(share * top_s) if share else "0"
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _labels(values: Sequence[float], found: Sensitivity) -> Iterator[str]:
    for value in values:
        now = " now" if value == found.present else ""
        yield (
            f'<text class="tick{now}" x="{_x(value, values):.1f}" y="{HEIGHT - 7}" '
            f'text-anchor="middle">{value_text(found, value)}</text>'
        )


def value_text(found: Sensitivity, value: float) -> str:
    """Returns a value of a series: a batch, or how many times as fast."""
    return f"{value:.0f}" if found.name == "global_batch" else f"x{significant(value, 2)}"


def _line(points: Sequence[Point], rank: int) -> Iterator[str]:
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="line c{rank + 1}" points="{text}"/>'
    for x, y in points:
        yield f'<circle class="dot c{rank + 1}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
