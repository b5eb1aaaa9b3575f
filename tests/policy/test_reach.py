"""Windows and reaches of small problems, against all partitions."""

import numpy as np
import pytest
from chain_problems import SIZE, all_ends, small_problems

from apss_jax.partitioning.instance import stage_sums
from apss_jax.partitioning.pipeline import PipelineInstance, fits
from apss_jax.policy import reach
from apss_jax.policy.chains import chains_of, size_for


def _feasible(instance: PipelineInstance, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of all partitions that fit, and the most of some work on any piece."""
    every = all_ends(instance.num_pieces, instance.num_layers)
    cuts = every[:, :-1].astype(np.int64) - 1
    kept = np.array([fits(instance, row) for row in cuts])
    most = [stage_sums(work, row).max() for row in cuts[kept]]
    return every[kept], np.array(most)


def _check_reach(reached: np.ndarray, ends: np.ndarray, most: np.ndarray, share: float) -> None:
    """Checks the first and last ends of a level against all partitions within its limit."""
    within = ends[most <= most.min() * share * (1 + 1e-12)]
    low, high = reached[:, : ends.shape[1]]
    np.testing.assert_array_equal(low, within.min(axis=0))
    np.testing.assert_array_equal(high, within.max(axis=0))


@pytest.mark.parametrize("seed", range(4))
def test_reaches_hold_every_partition_within_the_limit(seed: int) -> None:
    """Within each level, the first and last ends of a piece are those of all partitions."""
    found = small_problems(12, seed=seed)
    chains, is_feasible = chains_of(found, is_simulated=False, size=SIZE)
    rows = np.flatnonzero(is_feasible).tolist()
    assert len(rows) >= 6
    for row in rows:
        ends, slowest = _feasible(found[row], found[row].forward_s + found[row].backward_s)
        for level, share in enumerate(reach.TIME_LEVELS):
            _check_reach(chains.reach[row, level], ends, slowest, share)


@pytest.mark.parametrize("seed", range(4))
def test_reaches_of_gradient_work_hold_every_partition_within_the_limit(seed: int) -> None:
    """The same within each limit on gradient work, whatever the times."""
    found = small_problems(12, seed=seed)
    chains, is_feasible = chains_of(found, is_simulated=False, size=SIZE)
    rows = [row for row in np.flatnonzero(is_feasible).tolist() if found[row].gradient_s.any()]
    assert len(rows) >= 3
    for row in rows:
        ends, most = _feasible(found[row], found[row].gradient_s)
        for level, share in enumerate(reach.GRADIENT_LEVELS, len(reach.TIME_LEVELS)):
            _check_reach(chains.reach[row, level], ends, most, share)


def test_the_best_balanced_partition_lies_in_the_windows() -> None:
    """The ends that the least limit allows are in every window, so something can be decoded."""
    found = small_problems(40, seed=5)
    chains, is_feasible = chains_of(found, is_simulated=False, size=(4, 3, 3))
    for row in np.flatnonzero(is_feasible).tolist():
        pieces = found[row].num_pieces
        place = chains.reach[row, 0, 1, :pieces] - chains.origin[row, :pieces]
        assert np.all((place >= 0) & (place < 3))


def test_more_pieces_than_any_size() -> None:
    """A pipeline that is too deep for the network is refused, with the limit."""
    with pytest.raises(ValueError, match="65 pieces; the network takes at most 64"):
        size_for(65)
