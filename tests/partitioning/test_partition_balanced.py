"""Uniform, balanced and filled splits, by hand, against trying all and against the exact ones."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from apss_jax.partitioning.balanced import balanced_cuts, filled_cuts, uniform_cuts
from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.instance import fits_memory, timing_instance


def _stage_weights(weights: np.ndarray, cuts: np.ndarray) -> list[float]:
    return [float(piece.sum()) for piece in np.split(weights, np.asarray(cuts, int) + 1)]


@pytest.mark.parametrize(
    ("layers", "stages", "cuts"),
    [(10, 4, [2, 5, 7]), (8, 2, [3]), (3, 3, [0, 1]), (5, 1, [])],
)
def test_uniform_by_hand(layers: int, stages: int, cuts: list[int]) -> None:
    """Ten layers on four stages are 3, 3, 2 and 2."""
    assert uniform_cuts(layers, stages).tolist() == cuts


def test_balanced_by_hand() -> None:
    """An embedding as heavy as three blocks stands alone beside stages of three blocks."""
    assert balanced_cuts(np.array([3.0, 1, 1, 1, 1, 1, 1]), 3).tolist() == [0, 3]


def test_balanced_evens_out_the_other_stages() -> None:
    """A heavy last layer sets the largest stage; the rest is still split in halves."""
    assert balanced_cuts(np.array([1.0, 1, 1, 1, 9]), 3).tolist() == [1, 3]


def test_balanced_without_weights_is_uniform() -> None:
    """Weights of zero say nothing, so the numbers of layers are made equal."""
    assert balanced_cuts(np.zeros(10), 4).tolist() == [2, 5, 7]


def test_balanced_has_the_least_largest_stage() -> None:
    """No cuts at all have a lighter heaviest stage, at any scale of the weights."""
    rng = np.random.default_rng(6)
    for stages in (1, 2, 3, 5, 9):
        weights = rng.uniform(0, 1, 9) * 10.0 ** rng.integers(-9, 12)
        tries = [np.array(c, int) for c in combinations(range(8), stages - 1)]
        least = min(max(_stage_weights(weights, cuts)) for cuts in tries)
        assert max(_stage_weights(weights, balanced_cuts(weights, stages))) == pytest.approx(least)


def test_more_stages_than_layers_are_refused() -> None:
    """A stage needs a layer."""
    with pytest.raises(ValueError, match="num_stages is 4; it must be from 1 to"):
        balanced_cuts(np.ones(3), 4)
    with pytest.raises(ValueError, match="num_stages is 0"):
        uniform_cuts(3, 0)


def test_filling_finds_a_partition_wherever_one_fits() -> None:
    """On 300 tight instances it fits exactly where the exact partitioner finds any that does."""
    rng = np.random.default_rng(3)
    fitting = 0
    for _ in range(300):
        stages, layers = int(rng.integers(1, 5)), int(rng.integers(5, 9))
        memory = rng.uniform(0.5, 1.5, (stages, layers))
        capacity = rng.uniform(0.8, 1.8, stages) * layers / stages
        instance = replace(
            timing_instance(memory, np.zeros((layers - 1, stages - 1)), 2),
            memory_bytes=memory,
            capacity_bytes=capacity,
        )
        cuts, exact = filled_cuts(memory, capacity), solve_exact(instance)
        assert (cuts is None) == (exact is None)
        assert cuts is None or fits_memory(instance, cuts)
        fitting += cuts is not None
    assert 50 < fitting < 250
