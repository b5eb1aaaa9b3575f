"""How likely a stage runs out of memory, from a prediction that is not exact."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from jaxtyping import Float

from apss_jax.schema.stack import Stack

FITS_BELOW = 0.1  # probability of running out at which a stage no longer counts as fitting
NORMAL = NormalDist()
Bytes = float | Float[np.ndarray, "..."]


def oom_probability(
    total_bytes: Bytes, capacity_bytes: Bytes, stack: Stack
) -> Float[np.ndarray, "..."]:
    """Returns the chance that the true need exceeds the capacity, for one figure or for many.

    The truth is taken as normal around the prediction, with the stack's relative error.
    """
    need = np.maximum(np.asarray(total_bytes, dtype=float), 1.0)
    excess = (need - capacity_bytes) / (stack.memory_error_fraction * need)
    return np.vectorize(NORMAL.cdf, otypes=[float])(excess)


def usable_bytes(
    capacity_bytes: Float[np.ndarray, "..."], stack: Stack
) -> Float[np.ndarray, "..."]:
    """Returns the largest prediction that still counts as fitting."""
    margin = NORMAL.inv_cdf(1.0 - FITS_BELOW) * stack.memory_error_fraction
    return np.asarray(capacity_bytes) / (1.0 + margin)
