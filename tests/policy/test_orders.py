"""The order head: what may follow is exact, likelihoods add up, counts are kept."""

from dataclasses import replace
from functools import lru_cache
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.joint import JointInstance
from apss_jax.policy.batched import likely_orders, new_order_params, order_log_likelihood
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.placements import PlacementInput, placement_inputs
from apss_jax.training.placements import draw_placements

SMALL = OrderConfig(width=8, hidden=8, rounds=1)
SIZE = (8, 100, 1024)


@lru_cache(maxsize=1)
def _problems() -> list[JointInstance]:
    return [each.instance for each in draw_placements(12, 7, stages=(4, 5))]


def _all_orders(instance: JointInstance) -> np.ndarray:
    devices = np.repeat(np.arange(instance.num_types), instance.counts).tolist()
    return np.array(sorted(set(permutations(devices, instance.num_stages))))


def _fit(instance: JointInstance, orders: np.ndarray) -> np.ndarray:
    found = solve_exact_many([instance.ordered(order).closed_form() for order in orders])
    return np.array([solution is not None for solution in found])


def _likelihoods(inputs: PlacementInput, row: int, orders: np.ndarray) -> np.ndarray:
    problem = jax.tree.map(lambda values: jnp.asarray(values[row]), inputs)
    wide = np.pad(orders, ((0, 0), (0, SIZE[0] - orders.shape[1])), mode="edge")
    params = new_order_params(SMALL, 0)
    orders = jnp.asarray(wide, jnp.int32)
    return np.asarray(order_log_likelihood(SMALL, params, problem, orders))


def test_exactly_the_orders_that_fit_have_probability() -> None:
    """Over all orders, those that some cuts fit share the whole probability."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    for row, instance in enumerate(_problems()[:6]):
        orders = _all_orders(instance)
        is_fit = _fit(instance, orders)
        assert is_feasible[row] == is_fit.any()
        likelihood = _likelihoods(inputs, row, orders)
        assert np.all((likelihood > -1e8) == is_fit)
        assert np.exp(likelihood[is_fit]).sum() == pytest.approx(1.0, abs=1e-4)


def _with_a_small_type(instance: JointInstance, held: int) -> JointInstance:
    """Returns the problem with a type that holds a usual layer for fewer micro-batches alone."""
    layer_bytes = instance.state_bytes[1] + (held - 0.5) * instance.saved_bytes[1]
    capacity_bytes = instance.capacity_bytes.copy()
    capacity_bytes[0] = layer_bytes
    return replace(instance, capacity_bytes=capacity_bytes)


@pytest.mark.parametrize("held", [2, 3])
def test_a_type_that_holds_no_layer_at_a_stage_has_no_probability_there(held: int) -> None:
    """A device too small for any layer at a stage is never given that stage."""
    problems = [_with_a_small_type(instance, held) for instance in _problems()]
    inputs, is_feasible = placement_inputs(problems, SIZE)
    assert is_feasible.any()
    for row, instance in enumerate(problems):
        orders = _all_orders(instance)
        is_fit = _fit(instance, orders)
        assert is_feasible[row] == is_fit.any()
        if is_feasible[row]:
            assert np.all((_likelihoods(inputs, row, orders) > -1e8) == is_fit)


def test_likely_orders_keep_to_the_counts_and_fit() -> None:
    """No type is used more often than there are devices, and cuts that fit exist."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    params = new_order_params(SMALL, 1)
    orders, _ = likely_orders(SMALL, params, inputs, jax.random.key(0), 6)
    for row in np.flatnonzero(is_feasible).tolist():
        instance = _problems()[row]
        found = np.asarray(orders)[row, :, : instance.num_stages]
        used = (found[:, :, None] == np.arange(instance.num_types)).sum(axis=1)
        assert np.all(used <= instance.counts)
        assert _fit(instance, found).all()


def test_too_many_stages_are_refused() -> None:
    """The error names what there is and what the network takes."""
    known = next(draw_placements(1, 0, stages=(60, 60))).instance
    counts = np.full(known.num_types, 40)
    with pytest.raises(ValueError, match="65 stages"):
        placement_inputs([replace(known, counts=counts, num_stages=65)])
