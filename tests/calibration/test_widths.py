"""Widths of intervals: the stated coverage, and wider only where errors are larger."""

import math

import numpy as np
import pytest
from run_tables import run_of

from apss_jax.calibration.folds import left_out_reaches
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.widths import Misses, fit_widths
from apss_jax.planning.uncertainty import Reach

PLAIN = Reach(False, 0.0, 0.0, 0.0)
EXPERTS = Reach(True, 0.0, 0.0, 0.0)


def _misses(parts: list[tuple[Reach, int, float]]) -> Misses:
    """Returns normal errors of given deviations, so many of each reach."""
    rng = np.random.default_rng(0)
    errors = np.concatenate([rng.normal(0.0, sigma, count) for _, count, sigma in parts])
    reaches = [reach for reach, count, _ in parts for _ in range(count)]
    return Misses.of(errors, np.ones(len(errors)), reaches)


def _covered(misses: Misses, groups: list[str]) -> float:
    width = fit_widths(misses, groups)[groups[0]].of(misses)
    return float((misses.log_error <= width).mean())


def test_four_in_five_lie_inside() -> None:
    """Without anything beside it, the base alone covers 80 %."""
    assert _covered(_misses([(PLAIN, 500, 0.1)]), ["a"] * 500) == pytest.approx(0.8, abs=0.01)


def test_larger_errors_of_experts_widen_their_intervals_alone() -> None:
    """Deviations of 0.05 and 0.3 give half widths of about 1.28 times each."""
    misses = _misses([(PLAIN, 400, 0.05), (EXPERTS, 400, 0.3)])
    width = fit_widths(misses, ["a"] * 800)["a"].of(misses)
    assert width[0] == pytest.approx(1.28 * 0.05, rel=0.25)
    assert width[-1] == pytest.approx(1.28 * 0.3, rel=0.25)


def test_errors_that_grow_with_domains_are_the_groups_own() -> None:
    """One stack's error doubles with each doubling, another's does not: only the first widens."""
    reaches = [Reach(False, float(d), 0.0, 0.0) for d in (0, 3, 6)]
    growing = [(reach, 200, 0.05 + 0.1 * reach.domain_doublings) for reach in reaches]
    steady = [(reach, 200, 0.05) for reach in reaches]
    widths = fit_widths(_misses([*growing, *steady]), ["grows"] * 600 + ["stays"] * 600)
    assert widths["grows"].domain > 0.05
    assert widths["stays"].domain == 0.0


def test_what_domains_add_is_told_within_classes() -> None:
    """Errors of one class grow, hidden by another class with larger ones on single domains."""
    single, many = (Reach(False, float(d), 0.0, 0.0) for d in (0, 6))
    misses = _misses([(single, 100, 0.05), (many, 100, 0.15), (single, 400, 0.2)])
    classes = ["A100"] * 200 + ["H100"] * 400
    assert fit_widths(misses, ["a"] * 600, classes)["a"].domain > 0.0
    assert fit_widths(misses, ["a"] * 600)["a"].domain == 0.0


def test_domains_that_hardly_tell_add_nothing() -> None:
    """Thirty runs with errors a tenth larger are what chance does."""
    single, many = (Reach(False, float(d), 0.0, 0.0) for d in (0, 6))
    misses = _misses([(single, 100, 0.1), (many, 30, 0.11)])
    assert fit_widths(misses, ["a"] * 130)["a"].domain == 0.0


def test_far_runs_widen_what_lies_beyond_the_others() -> None:
    """Errors of 0.1 nearby and 0.5 at two doublings: the far ones are covered too."""
    far = Reach(False, 0.0, 2.0, 0.0)
    misses = _misses([(PLAIN, 300, 0.1), (far, 30, 0.5)])
    width = fit_widths(misses, ["a"] * 330)["a"]
    inside = misses.log_error <= width.of(misses)
    assert inside[:300].mean() == pytest.approx(0.8, abs=0.02)
    assert inside[300:].mean() == pytest.approx(0.8, abs=0.05)


def test_a_group_of_few_runs_is_as_uncertain_as_all_together() -> None:
    """Five runs that happen to be right say nothing of an interval."""
    misses = _misses([(PLAIN, 300, 0.2), (PLAIN, 5, 1e-6)])
    widths = fit_widths(misses, ["many"] * 300 + ["few"] * 5)
    assert widths["few"].base == pytest.approx(widths["many"].base, rel=0.1)


def test_runs_hardly_beyond_the_others_say_little_of_doublings() -> None:
    """A tenth of a doubling with an error of 0.5 does not make a whole one count for five."""
    hardly, far = (Reach(False, 0.0, doublings, 0.0) for doublings in (0.1, 4.0))
    misses = _misses([(PLAIN, 300, 0.1), (hardly, 10, 0.5), (far, 30, 0.45)])
    assert fit_widths(misses, ["a"] * 340)["a"].far < 0.2


def test_few_runs_leave_more_room_for_the_next() -> None:
    """Of 25 runs 4 more than of 2,500: 83 % of them lie within, so that 80 % of others do."""
    errors = np.linspace(0.1, 0.35, 25)
    few = fit_widths(_spread(errors), ["a"] * 25)["a"].base
    many = fit_widths(_spread(np.repeat(errors, 100)), ["a"] * 2500)["a"].base
    assert (errors < few).mean() == pytest.approx(0.84)
    assert (errors < many).mean() == pytest.approx(0.80)


def test_runs_of_one_voter_are_no_more_than_one() -> None:
    """Ten voters of 100 runs each leave the room of ten: 88 % lie within, not 80."""
    errors = np.linspace(0.1, 0.35, 1000)
    voters = np.arange(1000) % 10
    together = Misses.of(errors, np.ones(1000), [PLAIN] * 1000, voters)
    wide = fit_widths(together, ["a"] * 1000)["a"].base
    usual = fit_widths(_spread(errors), ["a"] * 1000)["a"].base
    assert (errors < wide).mean() == pytest.approx(0.88)
    assert (errors < usual).mean() == pytest.approx(0.80, abs=0.002)


def _spread(errors: np.ndarray) -> Misses:
    return Misses.of(errors, np.ones_like(errors), [PLAIN] * len(errors))


def test_a_left_out_run_is_as_far_as_its_sizes_lie_beyond_the_others() -> None:
    """Four times the devices of the other fold's runs are two doublings; inside is none."""
    runs = [run_of(num_gpus=n, global_batch="512") for n in ("8", "16", "64", "16")]
    subjects = predict_runs(runs).subjects
    reaches = left_out_reaches(subjects, np.array([0, 0, 1, 1]), ["nemo"] * 4)
    assert [r.far_doublings for r in reaches] == [math.log2(16 / 8), 0.0, math.log2(64 / 16), 0.0]
