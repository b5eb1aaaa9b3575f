"""Trials: what is run of a plan, what is refused, and how errors are told apart."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import jax.numpy as jnp
import pytest
from trial_plans import plan_of

from apss_jax.cli.run import run
from apss_jax.cli.trial import app
from apss_jax.importers.load import load_model
from apss_jax.schema.errors import InputError
from apss_jax.schema.plan import Plan
from apss_jax.trials.assigning import LONGEST_EMULATED_S, assignments_of, sizes_of
from apss_jax.trials.assignment import Assignment, Sizes, StageRecord, StepRecord
from apss_jax.trials.gpt import stage_parameters, through_stage, training_text
from apss_jax.trials.launch import Devices, run_assignment
from apss_jax.trials.outcome import outcome_of
from apss_jax.trials.running import Wish, try_plans

SMALL = Sizes(hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=32, seq_len=8)
GATE = 0.15  # of the median error of emulated plans, on a machine that others use too
UNEVEN = (  # layers of each stage, and what each layer takes there
    ((3, 2, 2, 1), (1.0, 1.0, 1.0, 1.0)),
    ((2, 2, 2, 2), (1.0, 1.0, 1.0, 1.0)),
    ((1, 2, 2, 3), (1.0, 1.0, 1.0, 1.0)),
    ((3, 3, 1, 1), (1.0, 1.0, 2.0, 2.0)),
    ((5, 3), (0.7, 1.0)),
)
EVEN = 2  # the rank of the plan whose stages are even: by (8 - 1) max + sum, 24 % ahead of the next


def _assignment(layers: tuple[int, ...], **changes: object) -> Assignment:
    (found,) = assignments_of([plan_of(layers)], SMALL, steps=3, emulate=False)
    return replace(found, **changes)


def _loss(layers: tuple[int, ...]) -> float:
    """Returns the loss of the first micro-batch through all stages, in this process."""
    assignment = _assignment(layers)
    inputs, targets = (one[0] for one in training_text(assignment))
    for stage in range(assignment.num_stages):
        parameters = stage_parameters(assignment, stage)
        inputs = through_stage(parameters, inputs, targets, num_heads=2, recompute=False)
    return float(inputs)


def test_the_model_does_not_depend_on_its_cuts() -> None:
    """However the layers are cut, the loss is the same; an untrained one is near log(words)."""
    whole = _loss((4,))
    assert _loss((3, 1)) == pytest.approx(whole, rel=1e-6)
    assert _loss((1, 2, 1)) == pytest.approx(whole, rel=1e-6)
    assert whole == pytest.approx(float(jnp.log(32)), rel=0.05)


def test_emulated_times_keep_their_proportions() -> None:
    """The longest pass takes a fixed time, the others as much less as in the plan."""
    plan = plan_of((3, 1), layer_s=(1.0, 6.0))
    (found,) = assignments_of([plan], SMALL, steps=1, emulate=True)
    assert found.emulated_backward_s == pytest.approx((LONGEST_EMULATED_S / 2, LONGEST_EMULATED_S))
    assert found.emulated_forward_s == pytest.approx(
        (LONGEST_EMULATED_S / 4, LONGEST_EMULATED_S / 2)
    )


def test_emulated_plans_have_one_scale() -> None:
    """A plan whose longest pass is half as long as another's stays so: their steps compare."""
    plans = [plan_of((2, 2), layer_s=(1.0, 1.0)), plan_of((1, 3), layer_s=(1.0, 4 / 3))]
    even, uneven = assignments_of(plans, SMALL, steps=1, emulate=True)
    assert uneven.emulated_backward_s == pytest.approx((LONGEST_EMULATED_S / 4, LONGEST_EMULATED_S))
    assert even.emulated_backward_s == pytest.approx((LONGEST_EMULATED_S / 2,) * 2)


def test_without_times_in_one_plan_all_layers_take_the_same() -> None:
    """Stages of 3 and 1 layers take 3 to 1, also in plans that say other times."""
    plans = [plan_of((3, 1)), plan_of((1, 2), layer_s=(9.0, 1.0))]
    for found, ratio in zip(
        assignments_of(plans, SMALL, steps=1, emulate=True), (3.0, 0.5), strict=True
    ):
        assert found.emulated_forward_s[0] == pytest.approx(ratio * found.emulated_forward_s[1])


def test_a_model_gives_its_widths() -> None:
    """A gated MLP of three matrices becomes a plain one with as many weights."""
    sizes = sizes_of(load_model("llama-3.1-8b"), 64)
    assert (sizes.hidden_size, sizes.num_heads, sizes.seq_len) == (4096, 32, 64)
    assert sizes.intermediate_size == 14336 * 3 // 2


def _record(forward_s: float, solo_s: float, transfer_s: float | None) -> StageRecord:
    """Returns a stage that takes as long backward as forward, four micro-batches, 1 s a step."""
    step = StepRecord(
        start_s=0.0,
        end_s=1.0,
        forward_s=4 * forward_s,
        backward_s=4 * forward_s,
        update_s=0.0,
        cpu_s=8 * forward_s,
        loss=2.0,
    )
    return StageRecord(solo_s, solo_s, 0.0, transfer_s, (step, replace(step, loss=1.5)))


def test_errors_of_schedule_and_profile_are_told_apart() -> None:
    """Two stages of 0.1 s a pass and four micro-batches end after 4 x 0.2 + 0.2 = 1.0 s.

    Fed with times measured alone, half as long, the prediction is half of that: all of its error
    is the profile's.
    """
    assignment = replace(_assignment((1, 1)), num_micro_batches=4)
    found = outcome_of(assignment, [_record(0.1, 0.05, 1e-9), _record(0.1, 0.05, None)])
    assert found.measured_step_s == 1.0
    assert found.predicted_from_step_s == pytest.approx(1.0, rel=1e-3)
    assert found.schedule_error_fraction == pytest.approx(0.0, abs=1e-3)
    assert found.profile_error_fraction == pytest.approx(-0.5, abs=1e-3)
    assert found.total_error_fraction == pytest.approx(-0.5, abs=1e-3)
    assert (found.first_loss, found.last_loss) == (2.0, 1.5)
    assert found.stages[0].processor_fraction == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"schedule": "interleaved_1f1b", "virtual_stages": 2}, "schedule"),
        ({"context_parallel": 2}, "context_parallel"),
        ({"expert_parallel": 2}, "expert_parallel"),
        ({"pipeline_parallel": 3}, "stages"),
    ],
)
def test_what_a_trial_cannot_run_is_refused(changes: dict[str, object], key: str) -> None:
    """The message names what the plan has that a trial does not."""
    plan = plan_of((1, 1)).model_copy(update=changes)
    with pytest.raises(InputError, match=key):
        assignments_of([plan], SMALL, steps=1, emulate=False)


def _ran(step_s: float, solo_s: float) -> list[StageRecord]:
    """Returns two stages whose passes take so long in the step and alone."""
    records = [_record(step_s, solo_s, 1e-9), _record(step_s, solo_s, None)]
    length_s = 10 * step_s  # 4 x 2 passes, and those of the other stage at the ends
    steps = [tuple(replace(s, end_s=length_s) for s in one.steps) for one in records]
    return [replace(one, steps=s) for one, s in zip(records, steps, strict=True)]


@pytest.mark.parametrize("shown", [1, 3])
def test_the_best_plan_is_that_of_the_shortest_step(
    shown: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured and predicted best may differ: each is named by its rank, wherever it stands."""
    ran = iter([_ran(0.3, 0.2), _ran(0.1, 0.15), _ran(0.2, 0.1)])
    monkeypatch.setattr("apss_jax.trials.running.run_assignment", lambda *_: next(ran))
    file = tmp_path / "result.json"
    plans = [plan_of((1, 1), micro_batches=4, rank=rank) for rank in (1, 2, 3)]
    file.write_text(json.dumps(_search_result(plans)))
    assert run(app, ["--plan", str(file), "--top", str(shown), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = {1: (1, 1), 3: (2, 3)}[shown]
    assert (found["best"], found["predicted_best"]) == expected


def test_too_few_devices_are_told_before_anything_runs() -> None:
    """A plan of seventeen stages is refused on a CPU."""
    wish = Wish(SMALL, 1, True, knows_model=False)
    with pytest.raises(InputError, match="needs 17 devices"):
        try_plans([plan_of((1,) * 17)], wish, file="p.json", tell=lambda _: None)


def test_a_missing_plan_gives_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --plan the command says what it needs and ends with 2."""
    assert run(app, []) == 2
    assert "--plan" in capsys.readouterr().err


@pytest.mark.slow
def test_stages_train_as_one_model() -> None:
    """Three uneven stages, and tensor- and data-parallel ones, have the losses of a single one."""
    cores = Devices("cpu", 2)
    whole = _losses(run_assignment(_assignment((4,)), cores))
    assert whole[-1] < whole[0]
    assert _losses(run_assignment(_assignment((1, 2, 1)), cores)) == pytest.approx(whole, rel=1e-5)
    shared = _assignment((3, 1), tensor_parallel=2, schedule="gpipe")
    assert _losses(run_assignment(shared, cores)) == pytest.approx(whole, rel=1e-5)
    twice = {"data_parallel": 2, "num_micro_batches": 4}
    apart = _losses(run_assignment(_assignment((2, 2), **twice), cores))
    together = _losses(run_assignment(_assignment((4,), micro_batch=2, num_micro_batches=4), cores))
    assert apart == pytest.approx(together, rel=1e-5)


def _losses(records: list[StageRecord]) -> list[float]:
    return [step.loss for step in records[-1].steps if step.loss is not None]


@pytest.mark.slow
def test_emulated_plans_take_what_is_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over five uneven plans the median error is below the gate, and the fastest one is known."""
    plans = [plan_of(n, layer_s=s, rank=i + 1) for i, (n, s) in enumerate(UNEVEN)]
    file = tmp_path / "result.json"
    file.write_text(json.dumps(_search_result(plans)))
    code = run(app, ["--plan", str(file), "--top", "5", "--steps", "3", "--emulate", "--json"])
    out = capsys.readouterr().out
    assert code == 0
    found = json.loads(out)
    errors = [abs(plan["total_error_fraction"]) for plan in found["plans"]]
    assert len(errors) == len(UNEVEN)
    assert median(errors) < GATE, errors
    assert found["emulated"]
    assert found["predicted_best"] == EVEN
    assert found["best"] == EVEN


def _search_result(plans: list[Plan]) -> dict[str, object]:
    counts = {"candidates": 5, "legal": 5, "fits": 5, "dropped": {}, "elapsed_s": {}}
    body = {"search": counts, "plans": [plan.to_json() for plan in plans]}
    return {"schema": "apss.search_result/1", **body}
