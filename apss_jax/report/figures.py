"""Numbers as people read them: three figures and a unit; '-' for what is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from apss_jax.units import GIB, MS, US

UNKNOWN: Final = "-"
COUNT_UNITS: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
BAR_WIDTH: Final = 8


def significant(value: float, figures: int = 3) -> str:
    """Returns a number rounded to some figures, never in scientific notation."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{figures - 1}e}")
    decimals = figures - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(0, decimals)}f}"


def _time_unit(value_s: float) -> tuple[float, str]:
    return (1.0, "s") if value_s >= 1 else (MS, "ms") if value_s >= MS else (US, "us")


def duration(value_s: float | None) -> str:
    """Returns a time in the unit that suits it."""
    if value_s is None:
        return UNKNOWN
    unit_s, name = _time_unit(value_s) if value_s else (1.0, "s")
    return f"{significant(value_s / unit_s)} {name}"


def interval(low_s: float, high_s: float) -> str:
    """Returns two times in one unit."""
    unit_s, name = _time_unit(high_s)
    return f"{significant(low_s / unit_s)}-{significant(high_s / unit_s)} {name}"


def count(value: float | None) -> str:
    """Returns a large count with its power of a thousand."""
    if value is None:
        return UNKNOWN
    for unit, name in COUNT_UNITS:
        if value >= unit:
            return f"{significant(value / unit)} {name}"
    return significant(value)


def gib(value_bytes: float | None) -> str:
    """Returns a size in GiB, without the unit."""
    return UNKNOWN if value_bytes is None else f"{value_bytes / GIB:.1f}"


def percent(fraction: float | None) -> str:
    """Returns a share in whole percent; what is neither none nor all is not shown as such."""
    if fraction is None:
        return UNKNOWN
    if 0 < fraction < 0.01:
        return "<1 %"
    if 0.99 < fraction < 1:
        return ">99 %"
    return f"{100 * fraction:.0f} %"


def bar(fraction: float) -> str:
    """Returns a bar that a share fills; a '+' where the share is more than all."""
    filled = min(BAR_WIDTH, round(BAR_WIDTH * max(0.0, fraction)))
    end = "+" if fraction > 1 else "]"
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}{end}"


def ranges(numbers: Sequence[int]) -> str:
    """Returns ascending runs of numbers as first-last."""
    ordered = sorted(numbers)
    if not ordered:
        return UNKNOWN
    starts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(ordered)) if b != a + 1)]
    ends = [*(start - 1 for start in starts[1:]), len(ordered) - 1]
    runs = [(ordered[s], ordered[e]) for s, e in zip(starts, ends, strict=True)]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def repeated(numbers: Sequence[int], most: int = 24) -> str:
    """Returns numbers with commas, or as runs 'number (x count)' where that would be long."""
    plain = ",".join(map(str, numbers))
    if len(plain) <= most:
        return plain or UNKNOWN
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0] + 1, number)
        else:
            runs.append((1, number))
    return ", ".join(f"{number} (x{times})" if times > 1 else str(number) for times, number in runs)
