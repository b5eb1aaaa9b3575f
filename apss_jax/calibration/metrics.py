"""Measures of how close predictions come; None where there are too few values for one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

PerRun = Float[np.ndarray, " batch"]
MIN_RANKED = 2  # values that have an order at all


def absolute_error_percent(predicted: PerRun, measured: PerRun) -> PerRun:
    """Returns the error of each prediction in percent of the measurement."""
    return 100.0 * np.abs(predicted / measured - 1.0)


def mean(values: PerRun) -> float | None:
    """Returns the mean, None of nothing."""
    return float(np.mean(values)) if len(values) else None


def median(values: PerRun) -> float | None:
    """Returns the median, None of nothing."""
    return float(np.median(values)) if len(values) else None


def share_percent(holds: Bool[np.ndarray, " batch"]) -> float | None:
    """Returns how many of the values are true, None of nothing."""
    return 100.0 * float(np.mean(holds)) if len(holds) else None


def spearman(a: PerRun, b: PerRun) -> float | None:
    """Returns the rank correlation, ties by their mean rank; None where one side has no order."""
    if len(a) < MIN_RANKED:
        return None
    ranks = [_ranks(values) for values in (a, b)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: PerRun) -> PerRun:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[index]
