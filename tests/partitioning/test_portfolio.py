"""Orders of devices by the simulated step: legal, seeded, near the best of all orders."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pipeline_instances import random_joint

from apss_jax.partitioning import portfolio
from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.joint import JointInstance, require_order
from apss_jax.partitioning.lattice import lattice_front
from apss_jax.partitioning.pipeline import fits, simulated_step_s
from apss_jax.partitioning.portfolio import arranged, block_orders, num_orders, scored_orders
from apss_jax.partitioning.refinement import refined_cuts


def instances(seed: int, counts: tuple[int, ...], count: int) -> list[JointInstance]:
    """Returns problems with memory tight in every second."""
    rng = np.random.default_rng(seed)
    return [random_joint(rng, 18, counts, node_stages=2, tight=bool(i % 2)) for i in range(count)]


@pytest.mark.parametrize("counts", [(4, 4), (2, 2, 2), (6, 6)])
def test_answers_are_legal_and_cost_what_is_said(counts: tuple[int, ...]) -> None:
    """The order exists, the cuts fit, and the step is the simulated one."""
    for number, free in enumerate(instances(1, counts, 4)):
        one = replace(free, blocking_fraction=0.2 * number)
        found = arranged(one, budget=600)
        if found is None:
            assert not lattice_front(one)
            continue
        require_order(one, found.order)
        pipeline = one.ordered(found.order)
        assert fits(pipeline, found.cuts)
        assert simulated_step_s(pipeline, found.cuts) == pytest.approx(found.objective_s)


def best_of_all_orders_s(instance: JointInstance) -> float:
    """Returns the least step of all orders, each with exact cuts and a long search of its own."""
    best_s = np.inf
    orders = portfolio._all_orders(tuple(instance.counts.tolist()), instance.num_stages)
    for order in orders:
        pipeline = instance.ordered(order)
        if solved := solve_exact(pipeline.closed_form()):
            best_s = min(best_s, refined_cuts(pipeline, solved.cuts[None]).step_s[0])
    return best_s


def test_near_the_best_of_all_orders() -> None:
    """Within a percent of all orders with a long search each, which it may even beat."""
    gaps = []
    for one in instances(2, (3, 3), 10):
        best_s = best_of_all_orders_s(one)
        if found := arranged(one, budget=4000):
            gaps.append(found.objective_s / best_s - 1)
    assert len(gaps) > 5
    assert max(gaps) < 0.01


def test_never_worse_than_type_blocks_cut_exactly() -> None:
    """Orders in blocks of a type are among those it begins with."""
    for one in instances(3, (5, 5), 4):
        found = arranged(one, budget=2000)
        for order in block_orders(one):
            pipeline = one.ordered(order)
            if solved := solve_exact(pipeline.closed_form()):
                assert found is not None
                block_s = simulated_step_s(pipeline, solved.cuts)
                assert found.objective_s <= block_s * (1 + 1e-12)


def test_proposals_come_first() -> None:
    """With a budget for little else, the answer is no worse than the order that is proposed."""
    one = instances(5, (6, 6), 1)[0]
    best = arranged(one, budget=4000)
    assert best
    own = arranged(one, budget=40, proposals=best.order[None])
    alone = scored_orders(one, best.order[None], 20)[0][0]
    assert own
    assert own.objective_s <= alone * (1 + 1e-12)


def test_a_seed_gives_the_same_again() -> None:
    """Input, budget and seed decide the answer; a far larger budget is no worse."""
    one = instances(4, (6, 6), 1)[0]
    small = [arranged(one, budget=800, seed=5) for _ in range(2)]
    large = arranged(one, budget=20_000, seed=5)
    assert small[0] and small[1] and large
    assert np.array_equal(small[0].order, small[1].order)
    assert np.array_equal(small[0].cuts, small[1].cuts)
    assert large.objective_s <= small[0].objective_s


@pytest.mark.parametrize(
    ("counts", "stages", "expected"),
    [((4, 4), 8, 70), ((3, 3, 2), 8, 560), ((4, 4), 2, 4), ((1, 4), 3, 4)],
)
def test_number_of_orders(counts: tuple[int, ...], stages: int, expected: int) -> None:
    """Multinomials; with devices to spare, summed over what is used."""
    one = replace(random_joint(np.random.default_rng(0), 12, counts), num_stages=stages)
    orders = portfolio._all_orders(counts, stages)
    assert num_orders(one) == expected == len({row.tobytes() for row in orders})


def test_blocks_hold_types_together() -> None:
    """Each sequence of types once, no type twice in it."""
    orders = block_orders(random_joint(np.random.default_rng(0), 12, (2, 3, 1)))
    assert len(orders) == 6
    assert {sum(a != b for a, b in pairwise(row.tolist())) for row in orders} == {2}


def test_nothing_fits() -> None:
    """Memory for no order gives no answer; a budget of nothing is refused."""
    one = random_joint(np.random.default_rng(1), 8, (2, 2))
    assert arranged(replace(one, capacity_bytes=np.full(2, 1e3))) is None
    with pytest.raises(ValueError, match="budget"):
        arranged(one, budget=0)
