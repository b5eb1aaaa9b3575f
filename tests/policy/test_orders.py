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
from apss_jax.partitioning.lattice import solve_lattice
from apss_jax.policy.batched import likely_orders, new_order_params, order_log_likelihood
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.placements import LONGEST_DETOUR, PlacementInput, placement_inputs
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


@pytest.mark.parametrize("seed", [None, 0])
def test_likely_orders_keep_to_the_counts_and_fit(seed: int | None) -> None:
    """No type is used more often than there are devices, cuts that fit exist, none comes twice."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    for row in np.flatnonzero(is_feasible).tolist():
        found, _ = _likely(inputs, row, 6, seed)
        instance = _problems()[row]
        used = (found[:, :, None] == np.arange(instance.num_types)).sum(axis=1)
        assert np.all(used <= instance.counts)
        assert _fit(instance, found).all()
        assert len(np.unique(found, axis=0)) == len(found)


def _likely(
    inputs: PlacementInput, row: int, count: int, seed: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the orders of one problem that are some, and their log-likelihoods."""
    one = jax.tree.map(lambda values: values[row : row + 1], inputs)
    key = None if seed is None else jax.random.key(seed)
    orders, likelihood = likely_orders(SMALL, new_order_params(SMALL, 0), one, count, key)
    is_order = np.asarray(likelihood)[0] > -1e8
    stages = int(inputs.num_stages[row])
    return np.asarray(orders)[0, is_order, :stages], np.asarray(likelihood)[0, is_order]


@pytest.mark.parametrize("seed", [None, 0])
def test_a_beam_wide_enough_holds_all_orders(seed: int | None) -> None:
    """All that fit come once, with the likelihood that they have on their own."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    for row in np.flatnonzero(is_feasible)[:4].tolist():
        orders, likelihood = _likely(inputs, row, 64, seed)
        instance = _problems()[row]
        every = _all_orders(instance)
        assert len(orders) == _fit(instance, every).sum()
        assert likelihood == pytest.approx(_likelihoods(inputs, row, orders), abs=1e-4)
        assert np.exp(likelihood).sum() == pytest.approx(1.0, abs=1e-4)
        if seed is None:
            assert np.all(np.diff(likelihood) <= 0)


def test_one_order_is_that_of_the_likeliest_steps() -> None:
    """A beam of one takes the likeliest type at every stage: no step can be made likelier alone."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    for row in np.flatnonzero(is_feasible).tolist():
        (order,), (likelihood,) = _likely(inputs, row, 1, None)
        every, each = _likely(inputs, row, 64, None)
        shares = np.exp(each)
        for stage in range(len(order)):
            begins = np.all(every[:, :stage] == order[:stage], axis=1)
            weights = np.bincount(every[begins, stage], shares[begins])
            assert weights[order[stage]] == pytest.approx(weights.max(), rel=1e-4)
        assert likelihood <= each[0] + 1e-5


def test_draws_without_replacement_begin_as_any_draw() -> None:
    """The first order of many draws is each one as often as its likelihood says."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    row = int(np.flatnonzero(is_feasible)[0])
    every, likelihood = _likely(inputs, row, 64, None)
    many = jax.tree.map(lambda values: np.repeat(values[row : row + 1], 400, axis=0), inputs)
    drawn, _ = likely_orders(SMALL, new_order_params(SMALL, 0), many, 3, jax.random.key(0))
    first = np.asarray(drawn)[:, 0, : every.shape[1]]
    often = (first[:, None] == every).all(axis=2).mean(axis=0)
    expected = np.exp(likelihood)
    deviation = np.sqrt(expected * (1 - expected) / len(first))
    assert np.all(np.abs(often - expected) < 5 * deviation + 1e-3)


def test_a_wrong_turn_is_known_by_its_detour() -> None:
    """Nodes of the lattice that the best plan goes through have none, all others have one."""
    inputs, is_feasible = placement_inputs(_problems(), SIZE)
    assert np.all(inputs.detours >= 0)
    assert np.all(inputs.detours[~is_feasible] == LONGEST_DETOUR)
    for row in np.flatnonzero(is_feasible).tolist():
        best = solve_lattice(_problems()[row])
        assert best is not None
        nodes = np.cumsum(inputs.strides[row][best.order])
        assert inputs.detours[row, nodes, best.order].max() < 0.02
        assert inputs.detours[row].max() == LONGEST_DETOUR


def test_too_many_stages_are_refused() -> None:
    """The error names what there is and what the network takes."""
    known = next(draw_placements(1, 0, stages=(60, 60))).instance
    counts = np.full(known.num_types, 40)
    with pytest.raises(ValueError, match="65 stages"):
        placement_inputs([replace(known, counts=counts, num_stages=65)])
