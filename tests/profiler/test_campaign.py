"""Measuring ends in time, goes on where it stopped, and says what it left out."""

import pytest
from mock_runs import Clock, meter_of, points_of

from profiler.budget import Budget
from profiler.campaign import Campaign
from profiler.pace import Pace

CALLS = 13
CLOCK_ALLOWANCE = 1.2  # of the time that was given


def _finished(campaign: Campaign) -> Campaign:
    while not campaign.is_done:
        campaign.round()
    return campaign


def _campaign(
    clock: Clock, minutes: float | None, compile_s: float = 8.0, **kwargs: object
) -> Campaign:
    meter = meter_of(clock, compile_s=compile_s, **kwargs)
    budget = Budget.of_minutes(minutes, clock)
    return Campaign.of(meter, points_of(), budget, calls=CALLS)


@pytest.mark.parametrize("minutes", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("compile_s", [1.0, 8.0, 20.0])
def test_it_ends_in_time(minutes: float, compile_s: float) -> None:
    """Compilation included, at most a fifth is added, and most of the time is used."""
    clock = Clock()
    campaign = _finished(_campaign(clock, minutes, compile_s))
    most_s = max(CLOCK_ALLOWANCE * 60 * minutes, compile_s + 5.0)  # one point is always tried
    assert 0.5 * min(60 * minutes, 200.0) < clock.now_s <= most_s
    assert campaign.rows


def test_without_a_limit_everything_is_measured() -> None:
    """Every point has its row, and nothing is said to be missing."""
    campaign = _finished(_campaign(Clock(), None))
    assert len(campaign.rows) == len(points_of())
    assert campaign.notes() == []


def test_the_most_informative_points_are_the_measured_ones() -> None:
    """What a short run has are the first points of the plan, whole layers among them."""
    campaign = _finished(_campaign(Clock(), 1.0))
    measured = [row.shape for row in campaign.rows]
    assert measured[0] == "llama-2-7b layer"
    assert campaign.skipped_for_time == len(points_of()) - len(measured)
    assert "--resume measures more" in campaign.notes()[0]


def test_known_points_are_not_measured_again() -> None:
    """What a file has is left out."""
    points = points_of()
    known = frozenset(point.key for point in points[:-3])
    clock = Clock()
    campaign = Campaign.of(
        meter_of(clock), points, Budget.of_minutes(None, clock), calls=CALLS, known=known
    )
    assert len(_finished(campaign).rows) == 3


def test_what_needs_more_memory_than_failed_is_not_tried() -> None:
    """After a micro-batch that does not fit, larger ones of the layer are left out."""
    campaign = _finished(_campaign(Clock(), None, most_tokens=4096))
    assert max(row.micro_batch * row.seq_len for row in campaign.rows) == 4096
    tried = len(campaign.rows) + len(campaign.failures)
    assert tried < len(points_of())
    assert all("does not fit" in why for why in campaign.failures.values())


def test_rounds_hand_on_what_is_new() -> None:
    """Each round returns its own rows, and together they are all."""
    campaign = _campaign(Clock(), None)
    rounds = []
    while not campaign.is_done:
        rounds.append(campaign.round(longest_s=60.0))
    assert len(rounds) > 1
    assert [row for rows in rounds for row in rows] == campaign.rows


def test_progress_tells_point_share_and_time_left() -> None:
    """The share grows, and what is left stays below the limit."""
    told: list[tuple[str, float, float]] = []
    clock = Clock()
    campaign = Campaign.of(
        meter_of(clock, compile_s=5.0), points_of(), Budget.of_minutes(2.0, clock), calls=CALLS,
        progress=lambda *now: told.append(now),
    )  # fmt: skip
    _finished(campaign)
    assert told[0][0] == "llama-2-7b layer b1 s1024 t1 bf16"
    assert all(0 <= done <= 1 and 0 <= left <= 120 for _, done, left in told)
    assert told[-1][1] > told[1][1]


def test_a_pace_scales_with_the_work() -> None:
    """Eight times the tokens take eight times as long, apart from compiling."""
    clock = Clock()
    pace, meter = Pace(CALLS), meter_of(clock, compile_s=8.0)
    points = [p for p in points_of() if p.subject.is_whole_layer and p.tensor_parallel == 1]
    small, large = (
        next(p for p in points if (p.micro_batch, p.seq_len) == (b, 1024)) for b in (1, 8)
    )
    pace.learn(small, meter.measure(small), clock.now_s)
    before_s = clock.now_s
    expected_s = pace.expected_s(large)
    meter.measure(large)
    assert expected_s == pytest.approx(1.1 * (clock.now_s - before_s), rel=0.2)


def test_a_shape_without_products_is_not_scaled_by_anothers() -> None:
    """An update after layers is expected to take about what they took, and so it is tried."""
    clock = Clock()
    pace, meter = Pace(CALLS), meter_of(clock, compile_s=8.0)
    layer, update = (
        next(p for p in points_of() if p.subject.shape.part == part)
        for part in ("layer", "optimizer")
    )
    pace.learn(layer, meter.measure(layer), clock.now_s)
    assert pace.expected_s(update) == pytest.approx(1.1 * clock.now_s)
