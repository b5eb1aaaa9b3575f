"""Numbers for people: units, three figures, and no number where none is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.report import figures
from apss_jax.units import GIB


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (2.3456, "2.35 s"),
        (0.0476, "47.6 ms"),
        (8.12e-4, "812 us"),
        (1234.0, "1230 s"),
        (0.0, "0 s"),
    ],
)
def test_durations_have_a_fitting_unit(value_s: float, text: str) -> None:
    """A time has three figures, in seconds, milliseconds or microseconds."""
    assert figures.duration(value_s) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0 %"), (0.004, "<1 %"), (0.416, "42 %"), (0.997, ">99 %"), (1.0, "100 %")],
)
def test_a_small_chance_is_not_shown_as_none(fraction: float, text: str) -> None:
    """Only 0 is '0 %' and only 1 is '100 %'."""
    assert figures.percent(fraction) == text


def test_unknown_figures_are_dashes() -> None:
    """What is not known is not shown as 0."""
    known = (figures.duration, figures.count, figures.gib, figures.percent)
    assert {show(None) for show in known} == {"-"}
    assert figures.ranges(()) == "-"


def test_counts_and_sizes() -> None:
    """Counts go by thousands, sizes by 2**30, intervals share one unit."""
    assert [figures.count(n) for n in (999, 1500, 8.03e9)] == ["999", "1.50 k", "8.03 B"]
    assert figures.gib(1.5 * GIB) == "1.5"
    assert figures.interval(0.9, 1.25) == "0.900-1.25 s"


@given(st.sets(st.integers(0, 60)))
def test_ranges_name_every_number_once(numbers: set[int]) -> None:
    """The runs, read back, are the numbers that went in."""
    runs = [run.split("-") for run in figures.ranges(list(numbers)).split(",") if run != "-"]
    assert [n for run in runs for n in range(int(run[0]), int(run[-1]) + 1)] == sorted(numbers)


def test_long_lists_are_run_length_coded() -> None:
    """A short list is written out; of a long one the repeats are counted."""
    assert figures.repeated([10, 8, 8, 6]) == "10,8,8,6"
    assert figures.repeated([7, *[8] * 14, 7]) == "7, 8 (x14), 7"


@given(st.floats(0, 3))
def test_bars_never_change_their_width(fraction: float) -> None:
    """A bar is as wide for an empty stage as for one that overflows, which it marks."""
    shown = figures.bar(fraction)
    assert len(shown) == figures.BAR_WIDTH + 2
    assert shown.endswith("+") == (fraction > 1)
