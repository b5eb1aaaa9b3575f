"""Partitions from a rule: equal numbers of layers, equal weights, or each stage filled."""

import numpy as np
from jaxtyping import Float, Float64, Int64

from apss_jax.partitioning.instance import MEMORY_SLACK_FRACTION

# Sums of the same weights in another order differ by rounding, not by weight.
_ROUNDING_FRACTION = 1e-12


def uniform_cuts(num_layers: int, num_stages: int) -> Int64[np.ndarray, "cuts"]:
    """Returns stages whose numbers of layers differ by one at most, the larger ones first.

    Raises ValueError if there are more stages than layers.
    """
    _require_stages(num_layers, num_stages)
    sizes = np.full(num_stages, num_layers // num_stages, np.int64)
    sizes[: num_layers % num_stages] += 1
    return np.cumsum(sizes)[:-1] - 1


def balanced_cuts(
    weights: Float[np.ndarray, "layers"], num_stages: int
) -> Int64[np.ndarray, "cuts"]:
    """Returns the stages whose largest weight is the least possible.

    Of several such partitions it is the one with the least sum of squared stage weights, so that
    the other stages are even too. Weights are zero or positive. Raises ValueError if there are more
    stages than layers.
    """
    _require_stages(len(weights), num_stages)
    if not np.any(weights):
        return uniform_cuts(len(weights), num_stages)
    before = np.concatenate(([0.0], np.cumsum(weights) / np.sum(weights)))
    # Row: where a stage starts; column: where it ends. Only later ends make a stage.
    shares = np.triu(before[None, :] - before[:, None], 1)
    is_stage = np.triu(np.ones(shares.shape, bool), 1)
    largest = _least_largest(np.where(is_stage, shares, np.inf), num_stages)
    is_stage &= shares <= largest + _ROUNDING_FRACTION
    return _least_sum(np.where(is_stage, shares**2, np.inf), num_stages)


def filled_cuts(
    memory_bytes: Float[np.ndarray, "stages layers"], capacity_bytes: Float[np.ndarray, "stages"]
) -> Int64[np.ndarray, "cuts"] | None:
    """Returns the partition that fills each stage with what it can hold; None if none fits.

    Where any partition fits, this one does: whatever a stage can still hold, no later one needs to.
    """
    stages, layers = memory_bytes.shape
    before = np.concatenate([np.zeros((stages, 1)), np.cumsum(memory_bytes, axis=1)], axis=1)
    ends = [0]
    for stage, allowed_bytes in enumerate(capacity_bytes * (1 + MEMORY_SLACK_FRACTION)):
        limit_bytes = before[stage, ends[-1]] + allowed_bytes
        end = int(np.searchsorted(before[stage], limit_bytes, side="right")) - 1
        end = min(end, layers - (stages - 1 - stage))
        if end <= ends[-1]:
            return None
        ends.append(end)
    return np.array(ends[1:-1], np.int64) - 1 if ends[-1] == layers else None


def _require_stages(num_layers: int, num_stages: int) -> None:
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"num_stages is {num_stages}; it must be from 1 to the number of layers, {num_layers}"
        )


def _least_largest(shares: Float64[np.ndarray, "offsets offsets"], num_stages: int) -> float:
    """Returns the least largest stage of any partition."""
    largest = shares[0]
    for _ in range(num_stages - 1):
        largest = np.maximum(largest[:, None], shares).min(axis=0)
    return float(largest[-1])


def _least_sum(
    costs: Float64[np.ndarray, "offsets offsets"], num_stages: int
) -> Int64[np.ndarray, "cuts"]:
    """Returns the cuts of the partition with the least sum of stage costs."""
    total, starts = costs[0], []
    for _ in range(num_stages - 1):
        sums = total[:, None] + costs
        starts.append(sums.argmin(axis=0))
        total = sums.min(axis=0)
    cuts, end = [], -1
    for start_of in reversed(starts):
        end = start_of[end]
        cuts.append(end - 1)
    return np.array(cuts[::-1], np.int64)
