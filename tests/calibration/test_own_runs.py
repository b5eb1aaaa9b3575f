"""A stack file from runs of one's own: what one run gives, what is refused, what is written."""

import json
from pathlib import Path

import pytest
from run_tables import run_of, write_table

from apss_jax.calibration.constants import NORMAL_80
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.metrics import absolute_error_percent
from apss_jax.calibration.own_runs import TIME_NOISE, calibrate_stack
from apss_jax.calibration.prediction import predict_runs
from apss_jax.cli.calibrate import app
from apss_jax.cli.run import run as run_command
from apss_jax.importers.clusters import load_stack
from apss_jax.schema.errors import InputError
from apss_jax.schema.runs import Run, read_runs
from apss_jax.schema.stack import DeviceError, Stack
from apss_jax.units import GIB

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "runs" / "published_runs.csv"
OTHER = {"tp": "4", "pp": "1", "micro_batch": "2"}


def predicted_s(stack: Stack | None = None, **changes: str | None) -> float:
    """Returns the predicted step time of the run, by its own stack or another."""
    return float(predict_runs([run_of(**changes)], stack=stack).figures.step_time_s[0])


def slower(factor: float, **changes: str | None) -> Run:
    """Returns the run with a step time of so many times the predicted one."""
    return run_of(**{**changes, "step_time_s": str(factor * predicted_s(**changes))})


def test_one_run_rescales_the_others() -> None:
    """A run 1.3 times slower than predicted makes another layout's prediction nearly so slow."""
    found = calibrate_stack([slower(1.3)], base=load_stack("generic"), name="mine")
    assert [each.constant for each in found.document.fitted] == ["time_factor"]
    before, after = (predicted_s(stack, **OTHER) for stack in (load_stack("generic"), found.stack))
    assert after / before == pytest.approx(found.stack.time_factor, rel=1e-5)


def test_one_run_is_believed_as_far_as_its_noise_allows() -> None:
    """The factor is the measured one to the power prior / (prior + noise variance)."""
    base = load_stack("generic")
    ratio = 1.3 * predicted_s() / predicted_s(base)
    prior = (base.step_time_error_fraction / NORMAL_80) ** 2
    found = calibrate_stack([slower(1.3)], base=base).stack.time_factor
    assert found == pytest.approx(ratio ** (prior / (prior + TIME_NOISE**2)), rel=1e-3)


def test_the_interval_narrows() -> None:
    """An unknown framework's interval is wide; three agreeing runs narrow it more than one."""
    base = load_stack("generic")
    runs = [slower(1.1), slower(1.1, **OTHER), slower(1.1, tp="8", pp="1")]
    widths = [
        calibrate_stack(some, base=base).stack.step_time_error_fraction for some in (runs[:1], runs)
    ]
    assert base.step_time_error_fraction > widths[0] > widths[1]


def test_the_interval_begins_with_that_of_the_runs_devices() -> None:
    """What the stack says of A100s is nothing to runs on H100s, and has no place beside them."""
    errors = (
        DeviceError(devices=("H100-SXM5-80GB",), step_time_error_fraction=0.05),
        DeviceError(devices=("A100-SXM4-80GB",), step_time_error_fraction=0.7),
    )
    base = load_stack("nemo").model_copy(update={"device_errors": errors})
    found = calibrate_stack([slower(1.0)], base=base).stack
    assert found.device_errors == ()
    assert found.step_time_error_fraction <= 0.05


def test_the_base_is_the_framework_s() -> None:
    """NeMo's runs start from NeMo's stack, whose name and kernels the new one keeps."""
    found = calibrate_stack([slower(1.2)], name="mine")
    assert (found.document.base, found.stack.name) == ("nemo", "nemo-mine")
    assert found.stack.kernel_s == load_stack("nemo").kernel_s
    assert "mine-0001" in found.stack.source


def test_measured_memory_moves_memory_alone() -> None:
    """A run that held more than predicted raises the factor on activations; times stay."""
    held = float(predict_runs([run_of()]).figures.memory_bytes[0])
    run = slower(1.0, peak_mem_gib=str(1.25 * held / GIB))
    found = calibrate_stack([run])
    assert found.stack.activation_factor > load_stack("nemo").activation_factor
    assert found.stack.time_factor == pytest.approx(1.0, abs=1e-3)
    memory = found.document.memory
    assert memory.mean_error_after_percent < memory.mean_error_before_percent


def test_what_one_run_cannot_determine_is_said() -> None:
    """Every other constant is named with its unchanged value and the runs it needs."""
    found = calibrate_stack([slower(1.2)])
    left = {each.constant: each for each in found.document.not_determined}
    assert {"gemm_slowdown", "cpu_forward_s", "reserved_bytes"} <= set(left)
    assert all(each.needs for each in left.values())
    assert left["gemm_slowdown"].value == found.stack.gemm_slowdown


def test_repeats_count_once() -> None:
    """Five runs of one layout determine no more than one of them."""
    run = slower(1.2)
    found = calibrate_stack([run] * 5).document
    assert (found.step_time.runs, found.step_time.distinct) == (5, 1)
    assert [each.constant for each in found.fitted] == ["time_factor"]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([run_of(step_time_s=None)], "no run has a step time"),
        ([run_of(hidden=None)], "no hidden size"),
        ([run_of(step_time_s="4"), run_of(step_time_s="8")], "differ 2.0 times"),
        ([run_of(step_time_s="4000")], "more than software explains"),
        ([run_of(), run_of(framework="llm-foundry", **OTHER)], "several stacks: fsdp, nemo"),
    ],
)
def test_runs_that_say_too_little_or_too_much_are_refused(runs: list[Run], words: str) -> None:
    """Without a time, with contradicting repeats, an impossible time, or two frameworks."""
    with pytest.raises(InputError, match=words):
        calibrate_stack(runs)


def test_layouts_that_contradict_each_other_are_refused() -> None:
    """One layout 2.5 times faster, another 2.5 times slower than predicted: no stack does both."""
    with pytest.raises(InputError, match="contradict each other in step time"):
        calibrate_stack([slower(0.4), slower(2.5, **OTHER)])


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published runs are not here")
def test_one_run_of_a_published_cluster_makes_the_others_right() -> None:
    """LLaMA layouts on A100 and a stack far too slow for them: one run, the middle of the table."""
    runs = [run for run in read_runs(PUBLISHED) if run.source_name == "aleph" and run.step_time_s]
    base = load_stack("generic").model_copy(update={"time_factor": 1.4})
    middle = len(runs) // 2
    found = calibrate_stack([runs[middle]], base=base)
    others = runs[:middle] + runs[middle + 1 :]
    before, after = (_mean_error_percent(others, stack) for stack in (base, found.stack))
    assert after < min(before, 8.0)


def _mean_error_percent(runs: list[Run], stack: Stack) -> float:
    found = Comparison.of(predict_runs(runs, stack=stack))
    error = absolute_error_percent(found.predicted.step_time_s, found.step_time_s)
    return float(error.mean())


def call(*words: str) -> int:
    """Returns the exit code of the command."""
    return run_command(app, words)


def test_the_command_writes_a_stack_that_others_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is a stack; the document names it, what was fitted and what was left out."""
    table = write_table(tmp_path, {}, {"run_id": "blank", "step_time_s": None})
    out = tmp_path / "mine.json"
    assert call("--runs", str(table), "--out", str(out), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "apss.calibration/1"
    assert document["file"] == str(out)
    assert document["left_out"][0]["run"] == "blank"
    assert load_stack(str(out)).time_factor == document["fitted"][0]["after"] != 1.0


def test_the_command_replaces_nothing_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An existing file is kept, exit 2; with --force it is replaced, and a person sees tables."""
    table, out = write_table(tmp_path, {}), tmp_path / "mine.json"
    out.write_text("mine")
    words = ("--runs", str(table), "--out", str(out), "--base", "generic")
    assert call(*words) == 2
    assert out.read_text() == "mine"
    assert call(*words, "--force") == 0
    text = capsys.readouterr().out
    assert "Stack generic-mine, from generic and 1 run" in text
    assert max(map(len, text.splitlines())) <= 80
    assert load_stack(str(out)).name == "generic-mine"


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--out", "a.json"), "--runs"),
        (("--runs", "none.csv"), "--out"),
        (("--runs", "none.csv", "--out", "a.txt"), "--out"),
        (("--runs", "none.csv", "--out", "no/folder/a.json"), "--out"),
        (("--runs", "none.csv", "--out", "a.json"), "(path)"),
    ],
)
def test_wrong_input_of_the_command(
    words: tuple[str, ...],
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 2 and one document that names the flag or the file."""
    monkeypatch.chdir(tmp_path)
    assert call(*words, "--json") == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["key"] == key
