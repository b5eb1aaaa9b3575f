"""Measures of accuracy, each against arithmetic by hand."""

import numpy as np
import pytest

from apss_jax.calibration.experiments import picked
from apss_jax.calibration.metrics import (
    absolute_error_percent,
    mean,
    median,
    share_percent,
    spearman,
)

NONE = np.array([])


def test_errors_are_relative_to_the_measurement() -> None:
    """1 for 2 is 50 % off, 3 for 2 too, 4 for 1 is 300 %."""
    error = absolute_error_percent(np.array([1.0, 3.0, 4.0]), np.array([2.0, 2.0, 1.0]))
    assert error.tolist() == [50.0, 50.0, 300.0]
    assert mean(error) == pytest.approx(400 / 3)
    assert median(error) == 50.0


def test_nothing_has_no_measure() -> None:
    """Of no values nothing is known, and one value has no order."""
    assert mean(NONE) is None
    assert median(NONE) is None
    assert share_percent(NONE.astype(bool)) is None
    assert spearman(np.array([1.0]), np.array([2.0])) is None
    assert spearman(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None


def test_rank_correlation_by_hand() -> None:
    """Ranks 1 2 3 4 against 2 1 4 3: 1 - 6 x 4 / (4 x 15) = 0.6."""
    a, b = np.array([1.0, 5.0, 6.0, 9.0]), np.array([20.0, 10.0, 40.0, 30.0])
    assert spearman(a, b) == pytest.approx(1 - 6 * 4 / (4 * 15))
    assert spearman(a, np.exp(a)) == pytest.approx(1.0)
    assert spearman(a, -a) == pytest.approx(-1.0)


def test_ties_share_their_mean_rank() -> None:
    """Ranks 1.5 1.5 3 against 1 2 3: Pearson of the ranks, 1.5 / sqrt(1.5 x 2)."""
    tied = spearman(np.array([4.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    assert tied == pytest.approx(1.5 / np.sqrt(1.5 * 2.0))


MEASURED = np.array([1.0, 1.2, 1.5, np.nan])
RAN = np.array([False, False, False, True])
FIT = np.ones(4, bool)


def test_regret_is_the_pick_over_the_best() -> None:
    """The second layout is predicted fastest and takes 1.2 for 1.0; the best is the third pick."""
    picks = picked(MEASURED, np.array([3.0, 1.0, 2.0, 9.0]), RAN, FIT)
    assert picks.regret_percent == pytest.approx(20.0)
    assert picks.top3_regret_percent == pytest.approx(0.0)
    assert not picks.failed


def test_a_failed_pick_has_no_regret() -> None:
    """The first choice ran out of memory; of the first three the best ran in 1.2."""
    picks = picked(MEASURED, np.array([9.0, 2.0, 3.0, 1.0]), RAN, FIT)
    assert picks.failed
    assert picks.regret_percent is None
    assert picks.top3_regret_percent == pytest.approx(20.0)


def test_what_is_predicted_not_to_fit_is_not_picked() -> None:
    """The failing layout is told apart, and the next one taken."""
    fits = np.array([True, True, True, False])
    picks = picked(MEASURED, np.array([9.0, 2.0, 3.0, 1.0]), RAN, fits)
    assert not picks.failed
    assert picks.regret_percent == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("measured", "failed", "fits"),
    [
        (np.array([1.0, np.nan]), np.array([False, False]), FIT[:2]),  # one known outcome
        (np.array([np.nan, np.nan]), np.array([True, True]), FIT[:2]),  # nothing ran
        (np.array([1.0, 2.0]), np.array([False, False]), ~FIT[:2]),  # nothing fits
    ],
)
def test_without_a_choice_there_is_no_regret(
    measured: np.ndarray, failed: np.ndarray, fits: np.ndarray
) -> None:
    """One layout, none that ran, or none that fits."""
    assert picked(measured, np.array([1.0, 2.0]), failed, fits) == (None, None, False)
