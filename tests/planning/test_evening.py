"""Even cuts among those of equal cost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.instance import (
    PartitionInstance,
    closed_form_cost_s,
    fits_memory,
    stage_sums,
)
from apss_jax.planning.evening import evened_cuts


def instance(
    stages: int, layers: int, capacity: float = np.inf, seed: int | None = None
) -> PartitionInstance:
    """Returns equal layers on equal stages, or random ones."""
    random = np.random.default_rng(seed)
    layer = np.ones(layers) if seed is None else random.choice([1.0, 2.0, 3.0], layers)
    return PartitionInstance(
        layer_cost_s=np.tile(layer, (stages, 1)),
        boundary_cost_s=np.zeros((layers - 1, stages - 1)),
        gradient_cost_s=np.zeros((stages, layers)),
        memory_bytes=np.ones((stages, layers)),
        capacity_bytes=np.full(stages, capacity),
        num_micro_batches=8,
    )


def test_a_short_last_stage_is_filled() -> None:
    """Ten layers on four stages, the longest of three: 3,3,3,1 becomes 3,2,2,3 or the like."""
    evened = evened_cuts(instance(4, 10), np.array([2, 5, 8]))
    sizes = np.diff([-1, *evened, 9])
    assert sorted(sizes.tolist()) == [2, 2, 3, 3]


def test_memory_stops_a_move() -> None:
    """A stage that may hold two layers gets no third."""
    tight = instance(4, 8, capacity=2.0)
    assert evened_cuts(tight, np.array([1, 3, 5])).tolist() == [1, 3, 5]


@given(st.integers(2, 5), st.integers(0, 10_000))
def test_evening_costs_nothing(stages: int, seed: int) -> None:
    """Cost and longest stage stay, the squares of the stage times do not grow, memory is kept."""
    problem = instance(stages, 12, capacity=8.0, seed=seed)
    found = solve_exact(problem)
    if found is None:
        return
    evened = evened_cuts(problem, found.cuts)
    before, after = (stage_sums(problem.layer_cost_s, cuts) for cuts in (found.cuts, evened))
    assert closed_form_cost_s(problem, evened) <= found.objective_s * (1 + 1e-9)
    assert after.max() <= before.max() * (1 + 1e-9)
    assert np.square(after).sum() <= np.square(before).sum() * (1 + 1e-9)
    assert fits_memory(problem, evened)
