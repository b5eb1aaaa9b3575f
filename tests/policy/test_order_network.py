"""The shipped order head on clusters that it never saw: what it is worth, and that it learned."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.portfolio import arranged, scored_orders
from apss_jax.policy.batched import likely_orders, new_order_params
from apss_jax.policy.placements import LONGEST_DETOUR, PlacementInput, placement_inputs
from apss_jax.policy.weights import Policy, shipped_policy
from apss_jax.training.placements import draw_placements

# Percent of the simulated step on average, each order with a search of 40 steps.
FIRST_GOAL, BEST_GOAL = 0.8, 0.2
SEED, COUNT, STEPS = 43_000, 60, 40

Orders = list[np.ndarray]


@lru_cache(maxsize=1)
def _problems() -> tuple[list[JointInstance], np.ndarray, PlacementInput]:
    """Returns clusters of four to eight stages, the least step known, and what the head sees."""
    drawn = [each.instance for each in draw_placements(COUNT, SEED, stages=(4, 8))]
    found = [arranged(instance, budget=4000) for instance in drawn]
    kept = [(each, best) for each, best in zip(drawn, found, strict=True) if best is not None]
    instances = [instance for instance, _ in kept]
    least_s = np.array([best.objective_s for _, best in kept])
    return instances, least_s, placement_inputs(instances)[0]


def _gaps(policy: Policy, inputs: PlacementInput, count: int) -> float:
    """Returns how far the best of some orders is from the least step known, in percent."""
    instances, least_s, _ = _problems()
    orders, likelihood = map(
        np.asarray, likely_orders(policy.order_config, policy.order_params, inputs, count)
    )
    steps_s = [
        scored_orders(instance, own[known > -1e8, : instance.num_stages].astype(np.int64), STEPS)[
            0
        ].min()
        for instance, own, known in zip(instances, orders, likelihood, strict=True)
    ]
    return float(100 * (np.array(steps_s) / np.minimum(least_s, steps_s) - 1).mean())


def test_it_reaches_its_goals() -> None:
    """The first order and the best of 16 are as near to the best known as they should be."""
    inputs = _problems()[2]
    assert _gaps(shipped_policy(), inputs, 1) <= FIRST_GOAL
    assert _gaps(shipped_policy(), inputs, 16) <= BEST_GOAL


def test_untrained_weights_miss_by_a_factor_of_two() -> None:
    """With random weights the same code, lattice included, is far from both goals."""
    shipped, inputs = shipped_policy(), _problems()[2]
    untrained = replace(shipped, order_params=new_order_params(shipped.order_config, 0))
    assert _gaps(untrained, inputs, 1) > 2 * FIRST_GOAL
    assert _gaps(untrained, inputs, 16) > 2 * BEST_GOAL


def _shuffled_detours(inputs: PlacementInput) -> PlacementInput:
    """Returns the problems with the detours of each node given to the types at random."""
    detours = np.random.default_rng(0).permuted(inputs.detours, axis=-1)
    return inputs._replace(detours=detours)


def _shuffled_types(inputs: PlacementInput) -> PlacementInput:
    """Returns the problems with what is known of types taken from other problems."""
    rows = np.random.default_rng(0).permutation(len(inputs.num_stages))
    return inputs._replace(types=inputs.types[rows], links=inputs.links[rows])


@pytest.mark.parametrize("change", [_shuffled_detours, _shuffled_types])
def test_it_looks_at_what_it_is_shown(change: Callable[[PlacementInput], PlacementInput]) -> None:
    """Where costs are shuffled before it sees them, its first order is worse by half or more."""
    inputs = _problems()[2]
    wrong = _gaps(shipped_policy(), change(inputs), 1)
    assert wrong > 1.5 * _gaps(shipped_policy(), inputs, 1)


def test_it_works_without_the_lattice() -> None:
    """Where no detours are known, as in lattices too large, it is still far from random."""
    shipped, inputs = shipped_policy(), _problems()[2]
    hidden = inputs._replace(detours=np.full_like(inputs.detours, LONGEST_DETOUR))
    untrained = replace(shipped, order_params=new_order_params(shipped.order_config, 0))
    assert _gaps(shipped, hidden, 1) < 0.5 * _gaps(untrained, hidden, 1)
