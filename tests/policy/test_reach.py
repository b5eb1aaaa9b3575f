"""Windows and reaches of small problems, against all partitions."""

import numpy as np
import pytest
from chain_problems import SIZE, all_ends, small_problems

from apss_jax.partitioning.instance import stage_sums
from apss_jax.partitioning.pipeline import PipelineInstance, fits
from apss_jax.policy import reach
from apss_jax.policy.chains import chains_of, size_for


def _feasible(instance: PipelineInstance) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of all partitions that fit, and their slowest piece."""
    every = all_ends(instance.num_pieces, instance.num_layers)
    cuts = every[:, :-1].astype(np.int64) - 1
    kept = np.array([fits(instance, row) for row in cuts])
    times = instance.forward_s + instance.backward_s
    slowest = [stage_sums(times, row).max() for row in cuts[kept]]
    return every[kept], np.array(slowest)


@pytest.mark.parametrize("seed", range(4))
def test_reaches_hold_every_partition_within_the_limit(seed: int) -> None:
    """Within each level, the first and last ends of a piece are those of all partitions."""
    found = small_problems(12, seed=seed)
    chains, is_feasible = chains_of(found, is_simulated=False, size=SIZE)
    for row in np.flatnonzero(is_feasible).tolist():
        ends, slowest = _feasible(found[row])
        for level, share in enumerate(reach.TIME_LEVELS):
            within = ends[slowest <= slowest.min() * share * (1 + 1e-12)]
            pieces = found[row].num_pieces
            low, high = chains.reach[row, level, :, :pieces]
            np.testing.assert_array_equal(low, within.min(axis=0))
            np.testing.assert_array_equal(high, within.max(axis=0))


def test_the_best_balanced_partition_lies_in_the_windows() -> None:
    """The ends that the least limit allows are in every window, so something can be decoded."""
    found = small_problems(40, seed=5)
    chains, is_feasible = chains_of(found, is_simulated=False, size=(4, 3))
    for row in np.flatnonzero(is_feasible).tolist():
        pieces = found[row].num_pieces
        place = chains.reach[row, 0, 1, :pieces] - chains.origin[row, :pieces]
        assert np.all((place >= 0) & (place < 3))


def test_more_pieces_than_any_size() -> None:
    """A pipeline that is too deep for the network is refused, with the limit."""
    with pytest.raises(ValueError, match="65 pieces; the network takes at most 64"):
        size_for(65)
