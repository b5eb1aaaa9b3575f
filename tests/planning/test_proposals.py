"""What the network proposes for layouts: never worse than what is known, or nothing."""

import numpy as np
import pytest

from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.pipeline import PipelineInstance, fits, simulated_step_s
from apss_jax.planning.proposals import proposed_cuts
from apss_jax.planning.search import search_plans
from apss_jax.training.instances import Family, draw


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


@pytest.mark.slow
def test_a_search_is_no_worse_for_the_network() -> None:
    """On mixed devices the first plan is at least as fast as with the exact solver alone."""
    asked = {"global_batch": 32, "top": 2}
    exact, network = (
        search_plans("gpt2-345m-amp", "amp-het-cluster", solver=solver, **asked)
        for solver in ("exact", "dpsn")
    )
    assert network.plans[0].cost.step_time_s <= exact.plans[0].cost.step_time_s
