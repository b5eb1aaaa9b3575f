"""AMP's three problems: its search space, and its measured trials."""

import csv
from pathlib import Path

import numpy as np
import pytest

from apss_jax.legality.facts import facts_of
from apss_jax.planning.clock import Clock
from apss_jax.planning.enumeration import enumerate_layouts
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.search import search_inputs
from benchmarks.amp_trials import CASES, CLUSTERS, predict, spearman, transferred, trials

TRIALS = Path(__file__).parents[3] / "shared" / "data" / "amp" / "amp_trials.csv"
BATCH = {"homogeneous": 32, "het_cluster": 32, "het_model": 64}
# AMP's own predictions of the same trials: mean absolute error in percent, rank correlation.
AMP_ERROR = {"homogeneous": (47.6, 0.935), "het_cluster": (49.4, 0.394), "het_model": (16.4, 0.853)}

needs_trials = pytest.mark.skipif(not TRIALS.exists(), reason="AMP's table of trials is not here")


@needs_trials
@pytest.mark.parametrize("experiment", CASES)
def test_every_layout_that_amp_tried_is_in_our_space(experiment: str) -> None:
    """Each (tensor, data, pipeline, micro-batch) of AMP's trials is a legal layout here."""
    model, cluster = CASES[experiment][:2]
    inputs = gather_inputs(model, cluster, global_batch=BATCH[experiment])
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    ours = enumerate_layouts(facts, {})
    columns = (ours.tensor_parallel, ours.data_parallel, ours.pipeline_parallel, ours.micro_batch)
    space = set(zip(*(column.tolist() for column in columns), strict=True))
    with TRIALS.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["experiment"] == experiment]
    tried = {tuple(int(row[key]) for key in ("tp", "dp", "pp", "mbs")) for row in rows}
    assert tried and tried <= space


@pytest.mark.slow
@pytest.mark.parametrize("experiment", CASES)
def test_policy_and_network_find_the_first_plan_of_every_layout(experiment: str) -> None:
    """Costing few layouts gives the plan that costing all gives, by either solver.

    The network's is that of exact cuts, or faster.
    """
    model, cluster = CASES[experiment][:2]
    inputs = gather_inputs(model, cluster, global_batch=BATCH[experiment])
    ours = search_inputs(inputs, "dpsn", {}, 1, Clock())
    every = search_inputs(inputs, "dpsn", {}, 1, Clock(), use_policy=False)
    few = search_inputs(inputs, "exact", {}, 1, Clock())
    exact = search_inputs(inputs, "exact", {}, 1, Clock(), use_policy=False)
    assert ours.search.fits < every.search.fits / 4
    bare = [
        found.plans[0].model_dump(exclude={"explanation"}) for found in (ours, every, few, exact)
    ]
    assert bare[0] == bare[1]
    assert bare[2] == bare[3]
    is_shorter = ours.plans[0].cost.step_time_s < exact.plans[0].cost.step_time_s
    assert is_shorter or bare[0] == bare[3]


@needs_trials
@pytest.mark.parametrize("experiment", ["homogeneous", "het_cluster"])
def test_predictions_of_amps_trials_are_better_than_amps(experiment: str) -> None:
    """With AMP's layouts and partitions our error is at most half of AMP's."""
    found = list(trials(TRIALS, experiment))
    measured = np.array([trial.measured_s for trial in found])
    predicted = predict(experiment, found)
    error_percent = 100 * np.abs(predicted / measured - 1).mean()
    amp_percent, amp_rank = AMP_ERROR[experiment]
    assert error_percent < amp_percent / 2
    assert spearman(predicted, measured) > amp_rank - 0.05


@needs_trials
def test_amps_own_figures_are_what_its_table_gives() -> None:
    """The figures we compare with are those of AMP's predictions in the same table."""
    for experiment, (percent, rank) in AMP_ERROR.items():
        found = list(trials(TRIALS, experiment))
        measured = np.array([trial.measured_s for trial in found])
        theirs = np.array([trial.amp_s for trial in found])
        assert 100 * np.abs(theirs / measured - 1).mean() == pytest.approx(percent, abs=0.05)
        assert spearman(theirs, measured) == pytest.approx(rank, abs=5e-4)


# Of one cluster predicted by a stack that was calibrated on the other: largest error in percent,
# least rank correlation, and by how much the first choice may be slower than the best measured.
TRANSFER = {"homogeneous": (15.0, 0.92, 0.11), "het_cluster": (20.0, 0.75, 0.05)}


@needs_trials
@pytest.mark.parametrize("experiment", CLUSTERS)
def test_a_stack_calibrated_on_one_cluster_predicts_the_other(experiment: str) -> None:
    """What the trials of one of AMP's clusters tell of the software holds on its other cluster."""
    found = {name: list(trials(TRIALS, name)) for name in CLUSTERS}
    stack, predicted = transferred(experiment, found)
    measured = np.array([trial.measured_s for trial in found[experiment]])
    percent, rank, regret = TRANSFER[experiment]
    assert "calibrated" in stack.name and len(predicted) == len(measured)
    assert 100 * np.abs(predicted / measured - 1).mean() < percent
    assert spearman(predicted, measured) > rank
    assert measured[np.argmin(predicted)] <= (1 + regret) * measured.min()
