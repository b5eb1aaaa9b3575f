"""Cut search by the simulator: never worse, never below the best there is, always legal."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from pipeline_instances import random_cuts, random_pipeline

from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.instance import require_cuts
from apss_jax.partitioning.pipeline import (
    PipelineInstance,
    fits,
    simulated_step_s,
    simulated_steps_s,
    stage_bytes,
)
from apss_jax.partitioning.refinement import refined_cuts

SIZES = [(10, 4, 8, 1), (10, 2, 8, 2), (11, 3, 6, 2)]  # layers, stages, micro-batches, chunks


def best_step_s(instance: PipelineInstance) -> float:
    """Returns the least step of all cuts that fit, or inf."""
    all_cuts = np.array(list(combinations(range(instance.num_layers - 1), instance.num_pieces - 1)))
    fitting = np.array([cuts for cuts in all_cuts if fits(instance, cuts)])
    return simulated_steps_s(instance, fitting).min() if len(fitting) else np.inf


def instances(seed: int, count: int, size: tuple[int, ...]) -> list[PipelineInstance]:
    """Returns pipelines of one size, memory short in about half of them."""
    rng = np.random.default_rng(seed)
    layers, stages, micro_batches, chunks = size
    rooms = rng.choice([np.inf, 1.2], count)
    return [
        random_pipeline(rng, layers, stages, micro_batches, virtual_stages=chunks, room=room)
        for room in rooms
    ]


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_below_the_best_of_all_cuts(size: tuple[int, ...]) -> None:
    """The search reaches the best of all cuts nearly always, and never claims less."""
    gaps = []
    for one in instances(3, 25, size):
        best_s = best_step_s(one)
        start = random_cuts(np.random.default_rng(0), one)
        found = refined_cuts(one, start[None], budget=1000)
        assert found.step_s[0] >= best_s * (1 - 1e-12)
        if np.isfinite(best_s):
            gaps.append(found.step_s[0] / best_s - 1)
    assert len(gaps) > 12
    assert np.mean(gaps) < 0.005


@pytest.mark.parametrize("size", SIZES)
def test_cuts_are_legal_and_cost_what_is_said(size: tuple[int, ...]) -> None:
    """No piece is empty, memory is kept, and the step is that of the cuts."""
    rng = np.random.default_rng(1)
    for one in instances(4, 15, size):
        found = refined_cuts(one, np.array([random_cuts(rng, one) for _ in range(3)]), budget=50)
        for cuts, step_s in zip(found.cuts, found.step_s, strict=True):
            require_cuts(cuts, one.num_pieces, one.num_layers)
            if np.isfinite(step_s):
                assert fits(one, cuts)
                assert simulated_step_s(one, cuts) == pytest.approx(step_s, rel=1e-12)


def test_no_worse_than_where_it_began() -> None:
    """A single simulated step returns the start, a larger budget nothing slower."""
    for one in instances(5, 20, (12, 4, 16, 1)):
        solved = solve_exact(one.closed_form())
        if solved is None:
            continue
        start_s = simulated_step_s(one, solved.cuts)
        steps_s = [refined_cuts(one, solved.cuts[None], budget=b).step_s[0] for b in (1, 20, 300)]
        assert steps_s[0] == start_s
        assert steps_s == sorted(steps_s, reverse=True)


def test_closed_form_leaves_something_to_find() -> None:
    """On uneven stages the search gains over the best cuts of the closed form."""
    gains = []
    for one in instances(6, 30, (16, 5, 16, 1)):
        if solved := solve_exact(one.closed_form()):
            found = refined_cuts(one, solved.cuts[None])
            gains.append(simulated_step_s(one, solved.cuts) / found.step_s[0] - 1)
    assert min(gains) >= 0
    assert np.mean(gains) > 0.005


def test_what_does_not_fit_is_made_to_fit() -> None:
    """From a first stage that is overfull, layers move on until every stage fits."""
    one = random_pipeline(np.random.default_rng(2), 12, 3, 8)
    even = stage_bytes(one, np.array([3, 7]))
    one = replace(one, capacity_bytes=np.full(3, 1.1 * even.max()))
    start = np.array([[9, 10]])
    assert not fits(one, start[0])
    assert fits(one, refined_cuts(one, start).cuts[0])


def test_where_nothing_fits_it_says_so() -> None:
    """The step is infinite, and the search ends."""
    one = random_pipeline(np.random.default_rng(2), 12, 3, 8, room=0.01)
    assert refined_cuts(one, np.array([[3, 7]])).step_s[0] == np.inf


def test_rows_do_not_depend_on_each_other() -> None:
    """A row alone gives what it gives among others; a seed gives the same again."""
    rng = np.random.default_rng(8)
    one = random_pipeline(rng, 24, 6, 16)
    cuts = np.array([random_cuts(rng, one) for _ in range(4)])
    together = refined_cuts(one, cuts, budget=200, seed=3)
    alone = [refined_cuts(one, row[None], budget=200, seed=3).cuts[0] for row in cuts]
    assert np.array_equal(together.cuts, alone)


@pytest.mark.parametrize(("cuts", "budget", "rule"), [([[3, 3]], 10, "cuts"), ([[3, 4]], 0, "bud")])
def test_what_makes_no_sense_is_refused(cuts: list[list[int]], budget: int, rule: str) -> None:
    """Empty pieces and empty budgets are named."""
    one = random_pipeline(np.random.default_rng(2), 12, 3, 8)
    with pytest.raises(ValueError, match=rule):
        refined_cuts(one, np.array(cuts), budget=budget)
