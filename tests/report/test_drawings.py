"""The pictures of a page, measured: their lengths and places are the result's numbers."""

from collections.abc import Callable

import pytest
from page_reader import Drawing, drawings
from report_samples import long_result, mixed_result

from apss_jax.report.page import report_page
from apss_jax.schema.plan import SearchResult

HALF = 0.006  # of a hundredth of a drawing's unit, to which it is written


def bars(result: SearchResult, words: str) -> list[Drawing]:
    """Returns the bars whose label begins with some words."""
    page = report_page(result, "page")
    return [each for each in drawings(page, "bar") if each.label.startswith(words)]


def test_memory_bars_are_shares_of_the_capacity() -> None:
    """A stage's bar is as long as what it holds of what its device has, part by part."""
    result = mixed_result()
    found = bars(result, "Memory of stage")
    stages = result.plans[0].stages
    assert len(found) == len(stages)
    for bar, stage in zip(found, stages, strict=True):
        held = stage.memory_bytes
        assert held is not None
        whole, track = max(held.capacity, held.total), bar.lengths("track")[""]
        lengths = bar.lengths("mem-")
        assert sum(lengths.values()) == pytest.approx(track * held.total / whole, abs=5 * HALF)
        for part, width in lengths.items():
            assert width == pytest.approx(track * getattr(held, part) / whole, abs=HALF)


def test_breakdown_bars_have_one_scale() -> None:
    """Each plan's bar is as long as its step, against the slowest end of any interval."""
    result = mixed_result()
    costs = [plan.cost for plan in result.plans if plan.cost]
    slowest_s = max(cost.step_time_high_s for cost in costs)
    found = bars(result, "Parts of plan")
    assert len(found) == len(costs) > 1
    for bar, cost in zip(found, costs, strict=True):
        track = bar.lengths("track")[""]
        for part, width in bar.lengths("part-").items():
            share = getattr(cost.breakdown_s, part) / slowest_s
            assert width == pytest.approx(track * share, abs=HALF)


@pytest.mark.parametrize("result", [mixed_result, long_result])
def test_bars_of_the_gantt_chart_are_the_ops(result: Callable[[], SearchResult]) -> None:
    """On each stage's row the bars begin and end when its ops do, whatever the window."""
    timeline = result().timeline
    assert timeline
    charts = drawings(report_page(result(), "page"), "gantt")
    for chart, (first_s, last_s) in zip(charts, timeline.windows_s, strict=True):
        rows = chart.spans("idle")
        assert len(rows) == len(timeline.stages)
        ops = chart.spans("op")
        for (left, right, top), stage in zip(rows, timeline.stages, strict=True):
            scale = (right - left) / (last_s - first_s)
            starts = [left + scale * (s - first_s) for s, e in zip(stage.start_s, stage.end_s,
                      strict=True) if e >= first_s and s <= last_s]  # fmt: skip
            drawn = sorted(span[0] for span in ops if span[2] == top)
            assert drawn == pytest.approx(sorted(max(start, left) for start in starts), abs=HALF)


def test_lengths_of_ops_are_their_times() -> None:
    """Bars of the first chart are as long as their ops, but for those too short to be seen."""
    timeline = mixed_result().timeline
    assert timeline
    (chart,) = drawings(report_page(mixed_result(), "page"), "gantt")
    (left, right, _), *_ = chart.spans("idle")
    scale = (right - left) / (timeline.windows_s[0][1] - timeline.windows_s[0][0])
    ends = [e - s for stage in timeline.stages
            for s, e in zip(stage.start_s, stage.end_s, strict=True)]  # fmt: skip
    widths = sorted(b - a for a, b, _ in chart.spans("op"))
    assert widths == pytest.approx(sorted(max(scale * s, 0.3) for s in ends), abs=2 * HALF)


def test_dots_of_the_curves_are_step_times() -> None:
    """Heights of a plan's dots are in the ratio of its step times, and a missing one has no dot."""
    result = mixed_result()
    curves = drawings(report_page(result, "page"), "curve")
    assert len(curves) == len(result.sensitivity) > 1
    for curve, series in zip(curves, result.sensitivity, strict=True):
        zero = max(float(line.get("y1", 0)) for line in curve.root.iter("line"))
        for rank in range(len(result.plans)):
            known = [t for p in series.points if (t := p.step_time_s[rank]) is not None]
            heights = [zero - y for _, y in curve.dots(f"c{rank + 1}")]
            assert len(heights) == len(known)
            assert [h / max(heights) for h in heights] == pytest.approx(
                [t / max(known) for t in known], abs=0.02
            )
