"""The document of `validate`: keys of the contract, counts that add up, published runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_tables import run_of, write_table

from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.validation import validate_runs
from apss_jax.cli.run import run as run_command
from apss_jax.cli.validate import app
from apss_jax.schema.runs import PUBLISHED_RUNS, Run, read_runs
from apss_jax.units import GIB

ROWS_PER_SOURCE = 4
SOURCE_KEYS = {
    "source", "rows", "predicted", "skipped", "assumed", "step_time", "memory", "oom",
}  # fmt: skip
TIME_KEYS = {
    "rows", "mape_percent", "median_ape_percent", "spearman", "interval_coverage_percent",
}  # fmt: skip
OOM_KEYS = {"true_positive", "false_positive", "true_negative", "false_negative"}
EXPERIMENT_KEYS = {
    "source", "table", "model", "num_gpus", "seq_len", "rows", "spearman", "regret_percent",
    "top3_regret_percent", "picked_failed",
}  # fmt: skip
NAMES = {"run_id": "mine-0001"}, {"run_id": "mine-0002", "tp": "4"}, {"run_id": "other-01"}


def _document(runs: Sequence[Run]) -> dict[str, Any]:
    return json.loads(json.dumps(validate_runs(runs).document.to_json(), allow_nan=False))


def test_the_document_has_the_keys_of_the_contract() -> None:
    """Keys at every level, also for a run that nothing was measured of."""
    found = _document([run_of(step_time_s=None)])
    assert found["schema"] == "apss.validation/1"
    assert set(found) == {"schema", "sources", "experiments"}
    (source,) = found["sources"]
    assert set(source) == SOURCE_KEYS
    assert set(source["step_time"]) == TIME_KEYS
    assert set(source["memory"]) == {"rows", "mape_percent", "median_ape_percent"}
    assert set(source["oom"]) == OOM_KEYS
    assert set(found["experiments"][0]) == EXPERIMENT_KEYS
    assert source["step_time"] == {**dict.fromkeys(TIME_KEYS), "rows": 0}


def test_errors_are_those_of_the_predictions() -> None:
    """A run measured at twice its predicted time is 50 % off, at the predicted time 0 %."""
    alone = predict_runs([run_of()]).figures
    time_s, held_gib = float(alone.step_time_s[0]), float(alone.memory_bytes[0]) / GIB
    runs = [
        run_of(step_time_s=str(time_s)),
        run_of(step_time_s=str(2 * time_s), peak_mem_gib=str(held_gib / 2)),
    ]
    (source,) = _document(runs)["sources"]
    assert source["step_time"]["mape_percent"] == pytest.approx(25.0, abs=1e-3)
    assert source["step_time"]["interval_coverage_percent"] == 50.0
    assert source["memory"]["median_ape_percent"] == pytest.approx(100.0, abs=1e-3)


def test_operations_per_second_are_a_step_time_where_their_formula_is_stated() -> None:
    """138 TFLOP/s on 64 devices: 96 x 512 x 2048 x 30 x 3072^2 (1 + 1/9 + 51200/1474560) a step."""
    sizes = {"num_layers": "30", "hidden": "3072", "num_heads": "32", "vocab": "51200"}
    run = {**sizes, "model_name": "", "ffn_hidden": None, "num_kv_heads": None, "seq_len": "2048"}
    run |= {"gpu_model": "A100-SXM4-80GB", "num_gpus": "64", "tp": "2", "dp": "32", "pp": "1"}
    run |= {"global_batch": "512", "micro_batch": "16", "tflops_per_gpu": "138"}
    run |= {"step_time_s": None, "tokens_per_s_per_gpu": None}
    stated = run_of(**run, note="counts 96BslH^2(1+s/6h+V/16lh)")
    operations = 96 * 512 * 2048 * 30 * 3072**2 * (1 + 1 / 9 + 51200 / (16 * 30 * 3072))
    silent = run_of(**run)
    times = Comparison.of(predict_runs([stated, silent])).step_time_s
    assert times[0] == pytest.approx(operations / (138e12 * 64), rel=1e-6)
    assert np.isnan(times[1])


def test_verdicts_are_counted() -> None:
    """8 billion parameters on 2 GPUs run out, on 16 they do not; both labels both ways."""
    small = {"num_gpus": "2", "tp": "1", "pp": "2", "dp": "1"}
    runs = [run_of(**extra, oom=label) for extra in (small, {}) for label in ("0", "1")]
    (source,) = _document(runs)["sources"]
    assert source["oom"] == dict.fromkeys(OOM_KEYS, 1)


def test_rows_are_predicted_or_skipped_with_a_reason() -> None:
    """Every run is counted once, under its source; reasons add up to the skipped."""
    runs = [run_of(), run_of(hidden=None), run_of(hidden=None), run_of(gpu_model="RTX-2080")]
    (source,) = _document(runs)["sources"]
    assert (source["rows"], source["predicted"]) == (4, 1)
    assert source["skipped"] == {"GPU not in the library": 1, "no hidden size": 2}
    assert source["assumed"]["recompute"] == 1


def test_sources_and_experiments_are_told_apart() -> None:
    """Sources by the run's name, experiments by table, model, GPUs and sequence length too."""
    runs = [run_of(**names) for names in NAMES]
    found = _document([*runs, run_of(seq_len="2048")])
    assert [source["source"] for source in found["sources"]] == ["mine", "other"]
    assert [each["rows"] for each in found["experiments"]] == [2, 1, 1]


def test_published_runs_of_every_source() -> None:
    """A few runs of each source: counts add up, and figures are finite and positive."""
    taken: dict[str, list[Run]] = {}
    for run in read_runs(PUBLISHED_RUNS):
        taken.setdefault(run.source_name, []).append(run)
    runs = [run for group in taken.values() for run in group[:ROWS_PER_SOURCE]]
    sources = {source["source"]: source for source in _document(runs)["sources"]}
    assert set(sources) == set(taken)
    for name, source in sources.items():
        assert source["rows"] == min(ROWS_PER_SOURCE, len(taken[name]))
        assert source["rows"] == source["predicted"] + sum(source["skipped"].values())
    assert sources["aleph"]["predicted"] == ROWS_PER_SOURCE
    assert sources["bs-v100"]["skipped"] == {"no number of layers": ROWS_PER_SOURCE}


def _called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run_command(app, words)
    return code, *capsys.readouterr()


def test_the_command_prints_one_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` gives the document on stdout, progress goes to stderr."""
    table = write_table(tmp_path, {}, {"run_id": "mine-0002", "hidden": None})
    code, out, err = _called(capsys, "--runs", str(table), "--json")
    assert code == 0
    assert json.loads(out)["sources"][0]["rows"] == 2
    assert "Predicted 1 of 1 runs" in err


def test_the_command_s_tables_are_narrow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """People get tables of at most 80 columns with what was skipped and assumed."""
    rows = [{"oom": "1", "num_gpus": "2", "pp": "1"}, {"hidden": None}, *[{}] * 5]
    code, out, _ = _called(capsys, "--runs", str(write_table(tmp_path, *rows)))
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "6 of 7 runs predicted" in out
    assert "mine: no hidden size (1)" in out


def test_the_command_writes_picture_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A PNG, and a page that names the command and both stacks' figures."""
    table = write_table(tmp_path, {"peak_mem_gib": "30"})
    picture, page = tmp_path / "a.png", tmp_path / "a.md"
    words = ("--runs", str(table), "--picture", str(picture), "--report", str(page))
    assert _called(capsys, *words)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "python -m apss_jax.validate" in text
    assert "generic MAPE %" in text
    assert "- mine (1 of 1 rows, 1 with a step time)" in text


def test_the_page_says_what_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is predicted and has no step time is counted; rates of verdicts stand in words."""
    table = write_table(tmp_path, {"step_time_s": None, "oom": "1"}, {"oom": "0"})
    page = tmp_path / "a.md"
    assert _called(capsys, "--runs", str(table), "--report", str(page))[0] == 0
    text = page.read_text()
    assert "- mine (2 of 2 rows, 1 with a step time)" in text
    assert "accuracy | precision | recall |" in text


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--runs", "none.csv"), "(path)"),
        (("--runs", "none.csv", "--picture", "a.txt"), "--picture"),
        (("--runs", "none.csv", "--report", "no/folder/a.md"), "--report"),
    ],
)
def test_wrong_input_of_the_command(
    words: tuple[str, ...], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one document that names the flag or the file."""
    code, out, _ = _called(capsys, *words, "--json")
    assert code == 2
    assert json.loads(out)["errors"][0]["key"] == key
