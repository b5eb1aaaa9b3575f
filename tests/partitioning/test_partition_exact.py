"""The exact partitioner finds the optimum, and says so when nothing fits."""

from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_instances import brute_force, random_instance

import apss_jax
from apss_jax.partitioning import exact
from apss_jax.partitioning.balanced import uniform_cuts
from apss_jax.partitioning.exact import solve_exact, solve_exact_many
from apss_jax.partitioning.instance import (
    PartitionInstance,
    closed_form_cost_s,
    fits_memory,
    timing_instance,
)

SEED_EVAL = Path(__file__).parents[3] / "shared/data/seed_eval"
SIZES = [(1, 1), (6, 1), (6, 6), (7, 2), (8, 3), (9, 4), (9, 5), (8, 7), (10, 3), (7, 7)]
SCALES_S = [1e-6, 1.0, 1e6]


def _chain(costs: list[float], stages: int, **changes: object) -> PartitionInstance:
    """Returns equal stages, free boundaries, two micro-batches."""
    layer_cost_s = np.tile(np.array(costs, float), (stages, 1))
    instance = timing_instance(layer_cost_s, np.zeros((len(costs) - 1, stages - 1)), 2)
    return replace(instance, **changes)


def _objective(instance: PartitionInstance) -> float:
    found = solve_exact(instance)
    return np.inf if found is None else found.objective_s


def test_equals_brute_force_on_500_instances() -> None:
    """Stages of different devices, tight memory, gradient terms, all scales: the same optimum."""
    rng = np.random.default_rng(20)
    sizes = list(islice(product(range(17), SCALES_S, SIZES), 500))
    instances = [random_instance(rng, *size, scale_s=scale) for _, scale, size in sizes]
    expected = np.array([brute_force(i) for i in instances])
    np.testing.assert_allclose([_objective(i) for i in instances], expected, rtol=1e-9)
    assert 25 < np.isinf(expected).sum() < 250


@given(st.integers(0, 10**6), st.integers(1, 40), st.data())
def test_nothing_scores_below(seed: int, layers: int, data: st.DataObject) -> None:
    """No partition that fits costs less, and the one returned fits and costs what it says."""
    stages = data.draw(st.integers(1, layers))
    any_cuts = data.draw(st.permutations(range(layers - 1)))[: stages - 1]
    instance = random_instance(np.random.default_rng(seed), layers, stages)
    found, cuts = solve_exact(instance), np.array(sorted(any_cuts), int)
    if found is None:
        assert not fits_memory(instance, cuts)
        return
    assert fits_memory(instance, found.cuts)
    assert closed_form_cost_s(instance, found.cuts) == pytest.approx(found.objective_s, rel=1e-9)
    if fits_memory(instance, cuts):
        assert found.objective_s <= closed_form_cost_s(instance, cuts) * (1 + 1e-9)


def test_hand_worked() -> None:
    """Costs 1 2 3 4: 1 2 3 | 4 has the slowest stage 6, so the step takes 10 + 6."""
    found = solve_exact(_chain([1, 2, 3, 4], 2))
    assert found is not None
    assert (found.cuts.tolist(), found.objective_s) == ([2], 10 + 6)


def test_gradient_term_moves_the_cut() -> None:
    """1 2 3 | 4 takes 10 + 6 + (2 + 2 + 6); with layer 2 moved it takes 10 + 7 + (6 + 2)."""
    gradient_s = np.tile([2.0, 2.0, 6.0, 2.0], (2, 1))
    found = solve_exact(_chain([1, 2, 3, 4], 2, gradient_cost_s=gradient_s))
    assert found is not None
    assert (found.cuts.tolist(), found.objective_s) == ([1], 10 + 7 + 6 + 2)


def test_memory_exactly_full_fits() -> None:
    """A stage that fills its capacity to the byte fits; one byte less and nothing fits."""
    memory_bytes = np.full((2, 4), 1e11 / 3)
    full = _chain(
        [1, 1, 1, 1], 2, memory_bytes=memory_bytes, capacity_bytes=memory_bytes[:, :2].sum(1)
    )
    assert solve_exact(full) is not None
    assert solve_exact(replace(full, capacity_bytes=full.capacity_bytes * (1 - 1e-6))) is None


def test_no_capacity_at_all_is_infeasible() -> None:
    """Devices without memory hold layers that need none, and no others."""
    empty = _chain([1, 1], 2, capacity_bytes=np.zeros(2))
    assert solve_exact(empty) is not None
    assert solve_exact(replace(empty, memory_bytes=np.ones((2, 2)))) is None


def test_forbidden_boundary_is_not_cut() -> None:
    """A boundary of infinite cost is avoided; when all are forbidden nothing is found."""
    boundary_s = np.array([[0.0], [0.0], [np.inf]])
    chain = _chain([1, 2, 3, 4], 2)
    assert solve_exact(replace(chain, boundary_cost_s=boundary_s)).cuts.tolist() == [1]
    assert solve_exact(replace(chain, boundary_cost_s=np.full((3, 1), np.inf))) is None


def test_free_layers_cost_nothing() -> None:
    """With no cost anywhere every partition is best, and one is returned."""
    found = solve_exact(_chain([0, 0, 0], 2))
    assert found is not None
    assert found.objective_s == 0


def test_many_equals_one_by_one() -> None:
    """Instances of mixed sizes come back in their own order, infeasible ones as None."""
    rng = np.random.default_rng(3)
    instances = [random_instance(rng, *SIZES[n % len(SIZES)]) for n in range(60)]
    many = [None if p is None else p.cuts.tolist() for p in solve_exact_many(instances)]
    single = [solve_exact(i) for i in instances]
    assert many == [None if p is None else p.cuts.tolist() for p in single]
    assert None in many


def test_short_box_table_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that runs out of room is done again with more, not cut short."""
    rng = np.random.default_rng(4)
    instances = [random_instance(rng, 40, 6) for _ in range(30)]
    usual = [_objective(i) for i in instances]
    monkeypatch.setattr(exact, "_NUM_BOXES", 4)
    assert [_objective(i) for i in instances] == usual


@pytest.mark.skipif(not SEED_EVAL.exists(), reason="needs ../shared")
@pytest.mark.parametrize("stages", [2, 4, 8, 16])
def test_published_instances(stages: int) -> None:
    """Two micro-batches, equal devices: the published optimum, less the constant sum of layers."""
    data = np.load(SEED_EVAL / f"seed_eval_L30_K{stages}.npz")
    layer_cost, comm_cost = data["layer_cost"].astype(float), data["comm_cost"].astype(float)
    for solver, name in (("exact", "optimum"), ("uniform", "uniform")):
        cuts = apss_jax.partition(layer_cost, comm_cost, num_stages=stages, solver=solver)
        instances = [
            timing_instance(np.tile(costs, (stages, 1)), comm, 2)
            for costs, comm in zip(layer_cost, comm_cost, strict=True)
        ]
        cost_s = [closed_form_cost_s(i, c) for i, c in zip(instances, cuts, strict=True)]
        np.testing.assert_allclose(cost_s - layer_cost.sum(1), data[name], rtol=1e-6)


def test_objective_grows_with_every_cost() -> None:
    """More time, boundary, gradient cost or memory never makes the optimum cheaper."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        instance = random_instance(rng, 20, 5)
        for name in ("layer_cost_s", "boundary_cost_s", "gradient_cost_s", "memory_bytes"):
            dearer = replace(instance, **{name: getattr(instance, name) * 1.25})
            assert _objective(dearer) >= _objective(instance) * (1 - 1e-9)


def test_equal_layers_are_split_evenly() -> None:
    """Twelve equal layers on four equal stages: three each."""
    found = solve_exact(_chain([1.0] * 12, 4))
    assert found is not None
    assert found.cuts.tolist() == uniform_cuts(12, 4).tolist() == [2, 5, 8]
