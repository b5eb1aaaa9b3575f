"""Predictions of many runs equal those of each alone, and those of `estimate`."""

import pytest
from run_tables import run_of

from apss_jax.calibration.measured import measured_step_s
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.subject import Subject, subject_of
from apss_jax.importers.clusters import load_stack
from apss_jax.planning.estimate import estimate_plan
from apss_jax.schema.plan import Plan

RUNS = (
    run_of(),
    run_of(num_gpus="32"),
    run_of(gpu_model="A100-SXM4-80GB", framework="DeepSpeed", pp="4", zero_stage="0"),
    run_of(recompute="full", micro_batch="2"),
    run_of(pp="1", tp="1"),
)


def _subject(index: int) -> Subject:
    found = subject_of(RUNS[index])
    assert isinstance(found, Subject)
    return found


def _estimated(subject: Subject) -> Plan:
    batch = {"global_batch": subject.global_batch, "seq_len": subject.seq_len}
    even = subject.model.num_layers // subject.layout.pipeline_parallel
    return estimate_plan(
        subject.model,
        subject.cluster,
        subject.layout,
        stack=subject.stack,
        precision=subject.precision,
        split=[even] * subject.layout.pipeline_parallel,
        **batch,
    ).plan


def test_many_equal_each_alone() -> None:
    """Grouping changes nothing, whatever the order."""
    together = predict_runs(RUNS).figures
    for i, run in enumerate(RUNS):
        alone = predict_runs([run]).figures
        assert alone.step_time_s[0] == pytest.approx(together.step_time_s[i], rel=1e-6)
        assert alone.memory_bytes[0] == pytest.approx(together.memory_bytes[i], rel=1e-6)


@pytest.mark.parametrize("index", range(len(RUNS)))
def test_a_prediction_is_the_estimate_of_the_plan(index: int) -> None:
    """The same layout through `estimate` has the same time, interval and memory."""
    figures = predict_runs([RUNS[index]]).figures
    plan = _estimated(_subject(index))
    assert plan.cost is not None
    assert figures.step_time_s[0] == pytest.approx(plan.cost.step_time_s, rel=1e-5)
    assert figures.low_s[0] == pytest.approx(plan.cost.step_time_low_s, rel=1e-5)
    assert figures.high_s[0] == pytest.approx(plan.cost.step_time_high_s, rel=1e-5)
    held = [stage.memory_bytes.total for stage in plan.stages if stage.memory_bytes]
    assert figures.memory_bytes[0] == pytest.approx(max(held), rel=1e-5)
    chances = [stage.oom_probability or 0.0 for stage in plan.stages]
    assert figures.oom_probability[0] == pytest.approx(max(chances), abs=1e-4)


def test_a_given_stack_stands_for_every_run_s_own() -> None:
    """With the generic stack the framework's name makes no difference."""
    pair = [run_of(framework="NeMo"), run_of(framework="unheard of", sequence_parallel="1")]
    times = predict_runs(pair, stack=load_stack("generic")).figures.step_time_s
    assert times[0] == pytest.approx(times[1])
    assert predict_runs(pair[:1]).figures.step_time_s[0] != pytest.approx(times[0])


def test_tensor_groups_that_fit_no_node_are_a_reason() -> None:
    """Groups of 3 devices do not come out of nodes of 8 as often as 24 devices need."""
    run = run_of(num_gpus="24", tp="3", pp="1", dp="8")
    skipped = predict_runs([run]).skipped
    assert [each.reason for each in skipped] == [
        "no layout: the tensor groups do not fit into the nodes"
    ]


def test_tokens_per_second_are_a_step_time() -> None:
    """128 x 4,096 tokens at 16 GPUs x 8,192 tokens per second take 4 s."""
    found = subject_of(run_of(step_time_s=None, tokens_per_s_per_gpu="8192"))
    assert isinstance(found, Subject)
    assert measured_step_s(found) == pytest.approx(128 * 4096 / (16 * 8192))


def test_nothing_predicts_nothing() -> None:
    """An unusable table gives empty figures, not an error."""
    found = predict_runs([run_of(num_layers=None)])
    assert found.subjects == ()
    assert len(found.figures.step_time_s) == 0
