"""How far off predictions are, from runs that they were not fitted on."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np
from jaxtyping import Float

PerRun = Float[np.ndarray, " batch"]
COVERAGE: Final = 0.8  # of the interval that a stack's error fraction spans
FEW_ROWS: Final = 20  # below which a stack's own errors are too few for a quantile
SIGMAS: Final = np.geomspace(0.02, 0.5, 60)  # tried for labels alone
MISLABELLED: Final = 0.03  # share of outcomes that have another cause
LEAST_CHANCE: Final = 1e-9
NORMAL: Final = NormalDist()


def weighted_quantile(values: PerRun, weight: PerRun, share: float) -> float:
    """Returns the value below which a share of the weight lies; NaN of nothing."""
    if not len(values):
        return float("nan")
    order = np.argsort(values)
    below = np.cumsum(weight[order]) - 0.5 * weight[order]
    return float(np.interp(share * weight.sum(), below, values[order]))


def interval_error(log_error: PerRun, weight: PerRun) -> float:
    """Returns the e for which 80 % of measured over predicted lies in [1 / (1 + e), 1 + e]."""
    return float(np.expm1(weighted_quantile(np.abs(log_error), weight, COVERAGE)))


def normal_error(log_error: PerRun, weight: PerRun) -> float:
    """Returns the standard deviation of a normal error whose 80 % interval is the observed one."""
    half_width = NORMAL.inv_cdf((1.0 + COVERAGE) / 2.0)
    return weighted_quantile(np.abs(log_error), weight, COVERAGE) / half_width


def excess_fraction(oom_probability: PerRun, memory_error_fraction: PerRun) -> PerRun:
    """Returns by what share of the need it exceeds the capacity, from the chance that it does."""
    chance = np.clip(oom_probability, LEAST_CHANCE, 1.0 - LEAST_CHANCE)
    return memory_error_fraction * np.vectorize(NORMAL.inv_cdf, otypes=[float])(chance)


def label_error(excess_fraction: PerRun, ran_out: PerRun) -> float:
    """Returns the standard deviation that makes the outcomes most likely.

    `excess_fraction` is the predicted need beyond the capacity, as a share of the need.
    """
    signs = np.where(ran_out == 1, 1.0, -1.0)
    chances = np.array([_normal_cdf(signs * excess_fraction / sigma) for sigma in SIGMAS])
    likelihood = np.log(MISLABELLED + (1.0 - 2.0 * MISLABELLED) * chances).sum(axis=1)
    return float(SIGMAS[int(np.argmax(likelihood))])


def _normal_cdf(values: PerRun) -> PerRun:
    return np.vectorize(NORMAL.cdf, otypes=[float])(values)
