"""What the network proposes for layouts: never worse than what is known, or nothing."""

import numpy as np
import pytest

from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.joint import require_order
from apss_jax.partitioning.pipeline import PipelineInstance, fits, simulated_step_s
from apss_jax.partitioning.portfolio import arranged
from apss_jax.planning.proposals import proposed_arrangements, proposed_cuts
from apss_jax.planning.search import search_plans
from apss_jax.training.instances import Family, draw
from apss_jax.training.placements import draw_placements


def _pipelines() -> list[tuple[PipelineInstance, np.ndarray]]:
    """Returns pipelines of up to 12 stages with the exact cuts of their closed form."""
    family = Family(stages=(2, 12), tight_memory=0.5, link=(0.05, 2.0), gradient=(0.1, 20.0))
    drawn = [draw(family, np.random.default_rng(seed)) for seed in range(14)]
    exact = solve_exact_many([one.closed_form() for one in drawn])
    return [(one, found.cuts) for one, found in zip(drawn, exact, strict=True) if found]


def test_proposals_are_no_worse_than_what_is_known() -> None:
    """They fit the memory, no step is longer, and some are shorter."""
    pipelines, known = zip(*_pipelines(), strict=True)
    found = proposed_cuts(pipelines, known)
    assert all(cuts is not None and fits(p, cuts) for p, cuts in zip(pipelines, found, strict=True))
    gains = [
        simulated_step_s(p, own) / simulated_step_s(p, cuts) - 1
        for p, own, cuts in zip(pipelines, known, found, strict=True)
    ]
    assert min(gains) >= -1e-12
    assert max(gains) > 0.01


def test_one_stage_has_nothing_to_propose() -> None:
    """A pipeline of one piece keeps what it has."""
    one = draw(Family(stages=(1, 1)), np.random.default_rng(0))
    assert proposed_cuts([one], [np.zeros(0, np.int64)]) == [None]


def test_arrangements_fit_and_are_near_a_long_search() -> None:
    """Orders exist, cuts fit, the step is as said; a search of few steps ends near one of many."""
    drawn = [each.instance for each in draw_placements(8, 31, stages=(12, 14))]
    longer = []
    for each, best in zip(drawn, proposed_arrangements(drawn, 500), strict=True):
        if best is None:
            continue
        require_order(each, best.order)
        pipeline = each.ordered(best.order)
        assert fits(pipeline, best.cuts)
        assert simulated_step_s(pipeline, best.cuts) == pytest.approx(best.objective_s)
        long = arranged(each, budget=8000)
        assert long is not None
        longer.append(best.objective_s / long.objective_s - 1)
    assert len(longer) >= 6
    assert np.mean(longer) < 0.005


def test_few_orders_and_large_problems_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is proposed where a search looks at all orders, or the network is too small."""
    few, many = (next(draw_placements(1, 31, stages=(n, n))).instance for n in (4, 12))
    assert proposed_arrangements([few], 1000) == [None]
    monkeypatch.setattr("apss_jax.policy.placements.SIZES", ((2, 100, 4096),))
    assert proposed_arrangements([many], 1000) == [None]


@pytest.mark.slow
def test_a_search_is_no_worse_for_the_network() -> None:
    """On mixed devices the first plan is at least as fast as with the exact solver alone."""
    asked = {"global_batch": 32, "top": 2}
    exact, network = (
        search_plans("gpt2-345m-amp", "amp-het-cluster", solver=solver, **asked)
        for solver in ("exact", "dpsn")
    )
    assert network.plans[0].cost.step_time_s <= exact.plans[0].cost.step_time_s
