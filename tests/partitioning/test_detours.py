"""Plans through a choice of devices, against every order cut exactly."""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from pipeline_instances import random_joint

from apss_jax.partitioning.detours import SLACK, detours, plans_through_s
from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.instance import closed_form_cost_s
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import lattice_front, lattice_grid, solve_lattice


@dataclass(frozen=True, eq=False)
class Bounds:
    """The least and the most that plans through each node may take, by the type of its stage."""

    least: np.ndarray
    most: np.ndarray


def feasible(rng: np.random.Generator, layers: int, counts: tuple[int, ...], **shape: bool) -> Any:
    """Returns a problem that some order fits."""
    while True:
        one = random_joint(rng, layers, counts, node_stages=2, **shape)
        if solve_lattice(one) is not None:
            return one


def nodes_of(instance: JointInstance, order: np.ndarray) -> np.ndarray:
    """Returns the node of the lattice after each stage of an order."""
    return np.cumsum(lattice_grid(instance)[2][order])


def loads_s(instance: JointInstance, order: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Returns the most that a stage takes in further micro-batches, and in its tail."""
    problem = instance.ordered(order)
    pieces = np.split(np.arange(instance.num_layers), cuts + 1)
    times = problem.forward_s + problem.backward_s
    rounds = [times[stage, piece].sum() for stage, piece in enumerate(pieces)]
    tails = [problem.gradient_s[stage, piece].sum() for stage, piece in enumerate(pieces)]
    return np.array([(instance.num_micro_batches - 1) * max(rounds), max(tails)])


def bounds(instance: JointInstance) -> Bounds:
    """Returns what the exact cuts of every order say of the nodes that it goes through."""
    first = lattice_front(instance, passes=1)[0]
    limits = SLACK * loads_s(instance, first.order, first.cuts)
    shape = (len(lattice_grid(instance)[3]), instance.num_types)
    least, most = np.full(shape, np.inf), np.full(shape, np.inf)
    devices = np.repeat(np.arange(instance.num_types), instance.counts).tolist()
    for order in map(np.array, sorted(set(permutations(devices, instance.num_stages)))):
        problem = instance.ordered(order).closed_form()
        found = solve_exact(problem)
        if found is None:
            continue
        cost_s = closed_form_cost_s(problem, found.cuts)
        own = loads_s(instance, order, found.cuts)
        nodes = nodes_of(instance, order), order
        least[nodes] = np.minimum(least[nodes], cost_s)
        if np.all(own <= limits):
            most[nodes] = np.minimum(most[nodes], cost_s - own.sum() + limits.sum())
    return Bounds(least, most)


@pytest.mark.parametrize("counts", [(2, 2), (2, 1, 2), (1, 3)])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_they_are_between_the_best_order_and_its_limits(
    counts: tuple[int, ...], with_gradients: bool
) -> None:
    """No node is better than its best order, nor worse than that at the limits it keeps within."""
    rng = np.random.default_rng(sum(counts))
    for tight in (False, True):
        one = feasible(rng, 9, counts, with_gradients=with_gradients, tight=tight)
        found_s, known = plans_through_s(one), bounds(one)
        assert np.all(found_s >= known.least * (1 - 1e-8))
        assert np.all(found_s <= known.most * (1 + 1e-8))


def test_the_best_plan_makes_none() -> None:
    """Some type of every stage is without a detour, and nothing is better than the optimum."""
    for seed in range(5):
        one = feasible(np.random.default_rng(seed), 20, (3, 3), tight=True)
        found, levels = detours(one), lattice_grid(one)[3]
        for stage in range(1, one.num_stages + 1):
            assert found[levels == stage].min() == pytest.approx(0.0, abs=1e-8)
        best = solve_lattice(one)
        assert best is not None
        assert plans_through_s(one).min() >= best.objective_s * (1 - 1e-8)


def test_nothing_fits() -> None:
    """Where no order fits the memory, there is no way through any node."""
    one = random_joint(np.random.default_rng(1), 8, (2, 2))
    full = replace(one, capacity_bytes=np.full(2, 1e3))
    assert solve_lattice(full) is None
    assert np.all(np.isinf(detours(full)))
