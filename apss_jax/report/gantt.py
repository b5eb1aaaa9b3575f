"""The pipeline of a result as a picture: a row for each stage, a bar for each op."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from apss_jax.report.figures import duration
from apss_jax.report.plan_words import PASS_WORDS
from apss_jax.schema.detail import StageTimeline, Timeline

WIDTH: Final = 1000  # of the drawing, in its own units, as all below
LABELS: Final = 64  # left of the rows
ROW: Final = 22
DEEP_ROW, DEEP = 13, 24  # rows of pipelines of more stages than that are thinner
AXIS: Final = 24
LEAST_SHOWN: Final = 0.3  # narrower bars are drawn this wide
DIGIT: Final = 6.4  # of a number in a bar
TICKS: Final = 5


def gantt_pictures(timeline: Timeline) -> list[str]:
    """Returns one SVG for each window of the timeline."""
    return [_picture(timeline, window) for window in timeline.windows_s]


def _picture(timeline: Timeline, window: tuple[float, float]) -> str:
    row = ROW if len(timeline.stages) <= DEEP else DEEP_ROW
    height = row * len(timeline.stages) + AXIS
    parts = [
        f'<svg class="gantt" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Ops of every stage from {_tick(window[0])} to {_tick(window[1])}">'
    ]
    for index, stage in enumerate(timeline.stages):
        top = index * row
        parts.append(f'<text x="0" y="{top + row / 2 + 4:.1f}">stage {index}</text>')
        parts.append(
            f'<rect class="idle" x="{LABELS}" y="{top + 1}" width="{WIDTH - LABELS}" '
            f'height="{row - 2}"/>'
        )
        parts += _bars(stage, window, top, row)
    return "".join([*parts, *_axis(window, height), "</svg>"])


def _x(time_s: float, window: tuple[float, float]) -> float:
    share = (time_s - window[0]) / (window[1] - window[0])
    return LABELS + (WIDTH - LABELS) * min(max(share, 0.0), 1.0)


def _bars(stage: StageTimeline, window: tuple[float, float], top: int, row: int) -> Iterator[str]:
    columns = (stage.passes, stage.micro_batches, stage.chunks, stage.start_s, stage.end_s)
    for letter, micro_batch, chunk, start_s, end_s in zip(*columns, strict=True):
        if end_s < window[0] or start_s > window[1]:
            continue
        left = _x(start_s, window)
        width = max(_x(end_s, window) - left, LEAST_SHOWN)
        said = PASS_WORDS[letter]
        if letter != "U":
            said += f" of micro-batch {micro_batch}" + (f", chunk {chunk}" if chunk else "")
        title = escape(f"{said}: {duration(start_s)} to {duration(end_s)}")
        yield (
            f'<rect class="op {letter}{" odd" if chunk % 2 else ""}" x="{left:.2f}" '
            f'y="{top + 1}" width="{width:.2f}" height="{row - 2}"><title>{title}</title></rect>'
        )
        number = str(micro_batch)
        if letter != "U" and row == ROW and width > DIGIT * len(number) + 3:
            yield (
                f'<text class="number on-{letter}" x="{left + width / 2:.2f}" '
                f'y="{top + row / 2 + 4:.1f}">{number}</text>'
            )


def _axis(window: tuple[float, float], height: int) -> Iterator[str]:
    for i in range(TICKS):
        time_s = window[0] + (window[1] - window[0]) * i / (TICKS - 1)
        anchor = "start" if i == 0 else "end" if i == TICKS - 1 else "middle"
        yield (
            f'<text class="tick" x="{_x(time_s, window):.1f}" y="{height - 6}" '
            f'text-anchor="{anchor}">{_tick(time_s)}</text>'
        )


def _tick(time_s: float) -> str:
    return duration(time_s) if time_s else "0"
