"""How far off predictions are: quantiles of errors, by hand and on samples of a normal."""

import numpy as np
import pytest

from apss_jax.calibration.intervals import (
    excess_fraction,
    interval_error,
    label_error,
    normal_error,
    weighted_quantile,
)

SAMPLE = np.random.default_rng(1).normal(size=20_000)
ONES = np.ones_like(SAMPLE)


def test_a_quantile_counts_by_weight() -> None:
    """Of 1, 2, 3 with weights 1, 1, 8 the median is near 3, with equal weights 2."""
    values = np.array([3.0, 1.0, 2.0])
    assert weighted_quantile(values, np.ones(3), 0.5) == pytest.approx(2.0)
    assert weighted_quantile(values, np.array([8.0, 1.0, 1.0]), 0.5) == pytest.approx(2.0 + 7 / 9)


def test_an_interval_holds_its_share() -> None:
    """80 % of measured over predicted lies within a factor of 1 + e."""
    factor = 1.0 + interval_error(0.1 * SAMPLE, ONES)
    inside = (np.exp(0.1 * SAMPLE) < factor) & (np.exp(0.1 * SAMPLE) > 1 / factor)
    assert inside.mean() == pytest.approx(0.8, abs=0.005)


def test_a_normal_error_is_its_deviation() -> None:
    """The spread of a normal sample is found from its middle 80 %."""
    assert normal_error(0.07 * SAMPLE, ONES) == pytest.approx(0.07, rel=0.03)


def test_the_excess_is_found_from_the_chance() -> None:
    """A chance of one standard deviation above the middle means one error of the need."""
    assert excess_fraction(np.array([0.8413447]), np.array([0.2])) == pytest.approx(0.2, rel=1e-5)


def test_outcomes_tell_the_error() -> None:
    """Runs that ran out where the truth, 7 % off, says so."""
    excess = np.linspace(-0.3, 0.3, len(SAMPLE))
    ran_out = (excess + 0.07 * SAMPLE > 0).astype(float)
    assert label_error(excess, ran_out) == pytest.approx(0.07, rel=0.2)
