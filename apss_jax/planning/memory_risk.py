"""How likely a stage runs out of memory, from a prediction that is not exact."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from apss_jax.schema.stack import Stack

FITS_BELOW = 0.1  # probability of running out at which a stage no longer counts as fitting
NORMAL = NormalDist()


def oom_probability(total_bytes: float, capacity_bytes: float, stack: Stack) -> float:
    """Returns the chance that the true need exceeds the capacity.

    The truth is taken as normal around the prediction, with the stack's relative error.
    """
    need = max(total_bytes, 1.0)
    return NORMAL.cdf((need - capacity_bytes) / (stack.memory_error_fraction * need))


def usable_bytes(
    capacity_bytes: Float[np.ndarray, "..."], stack: Stack
) -> Float[np.ndarray, "..."]:
    """Returns the largest prediction that still counts as fitting."""
    margin = NORMAL.inv_cdf(1.0 - FITS_BELOW) * stack.memory_error_fraction
    return np.asarray(capacity_bytes) / (1.0 + margin)
