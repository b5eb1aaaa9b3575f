"""Devices and cuts together: the lattice is the best of all orders, each cut exactly."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from pipeline_instances import random_joint

from apss_jax.partitioning import lattice
from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.instance import closed_form_cost_s, fits_memory
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import lattice_front, solve_lattice


def all_orders(instance: JointInstance) -> list[np.ndarray]:
    """Returns every order of the devices that there are."""
    devices = np.repeat(np.arange(instance.num_types), instance.counts).tolist()
    return [np.array(order) for order in sorted(set(permutations(devices, instance.num_stages)))]


def best_of_all_orders_s(instance: JointInstance) -> float:
    """Returns the least closed form of all orders and cuts, or inf."""
    problems = [instance.ordered(order).closed_form() for order in all_orders(instance)]
    found = solve_exact_many(problems)
    return min((one.objective_s for one in found if one), default=np.inf)


@pytest.mark.parametrize("counts", [(2, 2), (2, 1, 2), (1, 3), (3,)])
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("node_stages", [1, 2])
def test_it_is_the_best_of_all_orders(
    counts: tuple[int, ...], with_gradients: bool, node_stages: int
) -> None:
    """Memory tight or not, with devices to spare or none, with a tail or without."""
    rng = np.random.default_rng(sum(counts))
    for tight in (False, True, True):
        one = random_joint(
            rng, 9, counts, node_stages=node_stages, with_gradients=with_gradients, tight=tight
        )
        for stages in (one.num_stages, one.num_stages - 1):
            own = replace(one, num_stages=stages)
            found = solve_lattice(own)
            found_s = found.objective_s if found else np.inf
            assert found_s == pytest.approx(best_of_all_orders_s(own), rel=1e-9)


def test_what_it_finds_costs_what_it_says() -> None:
    """Orders and cuts of the front are legal, fit, and have their objective; the best is first."""
    rng = np.random.default_rng(5)
    for _ in range(10):
        one = random_joint(rng, 20, (3, 3), tight=True, node_stages=2)
        front = lattice_front(one)
        for found in front:
            problem = one.ordered(found.order).closed_form()
            assert fits_memory(problem, found.cuts)
            cost_s = closed_form_cost_s(problem, found.cuts)
            assert cost_s == pytest.approx(found.objective_s, rel=1e-9)
        scores = [found.objective_s for found in front]
        assert scores == sorted(scores)


def test_nothing_fits() -> None:
    """Memory for no order gives no answer."""
    one = random_joint(np.random.default_rng(1), 8, (2, 2))
    assert solve_lattice(replace(one, capacity_bytes=np.full(2, 1e3))) is None


def test_more_boxes_than_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that runs out of boxes is done again with more, and ends with the same."""
    one = random_joint(np.random.default_rng(3), 24, (3, 3))
    whole = solve_lattice(one)
    monkeypatch.setattr(lattice, "_NUM_BOXES", 4)
    again = solve_lattice(one)
    assert whole and again
    assert whole.objective_s == again.objective_s


def test_too_large_a_lattice_is_refused() -> None:
    """The message gives the counts and the limit."""
    one = random_joint(np.random.default_rng(1), 70, (16, 16, 16, 16))
    with pytest.raises(ValueError, match="more than 6000000 cells"):
        solve_lattice(one)
