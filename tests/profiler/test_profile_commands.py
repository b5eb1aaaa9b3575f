"""The command line: what it writes, what it refuses, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from import_graph import ROOT
from mock_runs import Clock, Interrupted, meter_of, mock_bench

import profiler.cli
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.document import read_document
from profiler.answers import run
from profiler.cli import app

MOCK = ["mock", "1x8xH100-SXM5-80GB", "--model", "gpt2"]
SHORT = ["--micro-batch", "1", "--seq-len", "16", "--tp", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def imitated(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Puts an imitated H200 where the machine's devices would be looked for."""
    clock = Clock()

    def bench(*_: Any, **__: Any) -> Any:
        found = mock_bench(clock, 8.0, meter_of(clock, compile_s=8.0))
        device = type("Device", (), {"platform": "gpu"})()
        context = found.context.__class__(**{**found.context.__dict__, "devices": (device,)})
        return type(found)(**{**found.__dict__, "context": context})

    monkeypatch.setattr(profiler.cli, "_bench", bench)
    return clock


def test_eight_minutes_on_one_gpu(folder: Path, imitated: Clock, capsys: Any) -> None:
    """The command that is meant for a GPU ends within ten and leaves layers of a 7B model."""
    code = run(app, ["--minutes", "8", "--model", "llama-2-7b", "--out", "h200.json"])
    assert code == 0
    assert imitated.now_s < 600
    profile = read_document(ClusterProfile, folder / "h200.json")
    assert len(profile.measurements) > 20
    said = capsys.readouterr()
    assert "Wrote h200.json" in said.err
    assert "Layers on H200-SXM-141GB" in said.out


def test_an_older_file_is_not_lost(folder: Path, imitated: Clock, capsys: Any) -> None:
    """A second run needs --resume or --force; with --resume it measures only what is missing."""
    words = ["--minutes", "8", "--model", "llama-2-7b"]
    assert run(app, words) == 0
    first = read_document(ClusterProfile, folder / "cluster_profile.json")
    assert run(app, words) == 2
    assert "--resume" in capsys.readouterr().err
    assert run(app, [*words, "--resume"]) == 0
    second = read_document(ClusterProfile, folder / "cluster_profile.json")
    assert second.measurements[: len(first.measurements)] == first.measurements
    assert len(second.measurements) > len(first.measurements)
    assert run(app, [*words, "--force"]) == 0


def test_an_interrupt_ends_with_130(folder: Path, monkeypatch: Any, capsys: Any) -> None:
    """Ctrl-C keeps the file, says so, and ends as a shell expects."""
    clock = Clock()
    bench = mock_bench(clock, 8.0, meter_of(clock, Interrupted))
    device = type("Device", (), {"platform": "gpu"})()
    context = bench.context.__class__(**{**bench.context.__dict__, "devices": (device,)})
    given = type(bench)(**{**bench.__dict__, "context": context})
    monkeypatch.setattr(profiler.cli, "_bench", lambda *_, **__: given)
    assert run(app, ["--model", "llama-2-7b"]) == 130
    assert "go on with --resume" in capsys.readouterr().err
    profile = read_document(ClusterProfile, folder / "cluster_profile.json")
    assert len(profile.measurements) == 2


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--minutes", "soon"], "--minutes is soon: must be a number of minutes"),
        (["--minutes", "0"], "must be a number of minutes"),
        (["--out", "profile.txt"], "does not name a .json file"),
        (["--out", "none/p.json"], "is not there or cannot be written"),
        (["--precision", "fp8"], "--precision is fp8: is not known"),
        (["--tp", "2,x"], "--tp is x: must be a whole number"),
        (["--recompute", "some"], "Choose from none, full, selective"),
        (["--modle", "gpt2"], "No such option"),
        (["--process-id", "-1"], "--process-id is -1: must be a whole number from 0"),
        (["show", "none.json"], "No such file"),
    ],
)
def test_a_wrong_flag_is_one_message(
    folder: Path, words: list[str], rule: str, capsys: Any
) -> None:
    """Exit code 2, one line with flag, value, rule and remedy, and nothing on stdout."""
    assert run(app, words) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert rule.lower() in said.err.lower()


def _damaged(kind: str, text: str) -> str:
    data = json.loads(text)
    if kind == "newer":
        return json.dumps({**data, "schema": "apss.cluster_profile/2"})
    if kind == "foreign":
        return json.dumps({"layers": [1, 2]})
    if kind == "negative":
        data["measurements"][0]["forward_s"] = -1.0
        return json.dumps(data)
    if kind == "later key":
        data["measurements"][0]["tokens_per_joule"] = 1.0
        return json.dumps(data)
    return {"truncated": text[: len(text) // 2], "empty": "", "binary": "\0\1\2"}[kind]


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("truncated", "is not JSON"),
        ("empty", "is not JSON"),
        ("binary", "is not JSON"),
        ("foreign", "must be 'apss.cluster_profile/1'"),
        ("newer", "must be 'apss.cluster_profile/1': the file is newer than this version"),
        ("negative", "measurements.0.forward_s is -1.0: input should be greater than 0"),
        ("later key", "tokens_per_joule is 1.0: is not a known key"),
    ],
)
@pytest.mark.parametrize("words", [["show", "p.json"], ["--resume", "--out", "p.json"]])
def test_a_damaged_profile_is_one_message(
    folder: Path, kind: str, rule: str, words: list[str], capsys: Any
) -> None:
    """Shown or gone on with, such a file is named with what is wrong; it is left as it was."""
    assert run(app, [*MOCK, "--out", "p.json"]) == 0
    text = _damaged(kind, (folder / "p.json").read_text())
    (folder / "p.json").write_text(text)
    capsys.readouterr()
    assert run(app, words) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert said.startswith("Error: p.json: ") and rule in said
    assert (folder / "p.json").read_text() == text


@pytest.mark.parametrize(("version", "word"), [("0", "older"), ("2", "newer")])
@pytest.mark.parametrize(
    "words",
    [
        ["show", "p.json"],
        ["merge", "q.json", "p.json", "--out", "both.json"],
        ["--resume", "--out", "p.json"],
    ],
)
def test_another_versions_profile_says_so(
    folder: Path, words: list[str], version: str, word: str, capsys: Any
) -> None:
    """One line names the file, whether it is older or newer, and what to do."""
    for file in ("p.json", "q.json"):
        assert run(app, [*MOCK, "--out", file]) == 0
    text = (folder / "p.json").read_text().replace("_profile/1", f"_profile/{version}", 1)
    (folder / "p.json").write_text(text)
    capsys.readouterr()
    assert run(app, words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"Error: p.json: schema is apss.cluster_profile/{version}: ")
    assert f"the file is {word} than this version" in said
    assert "write the file again" in said
    assert not (folder / "both.json").exists()


def _python(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "profiler", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2.0, 6.0])
def test_killed_at_any_moment_it_leaves_a_valid_file_or_none(folder: Path, seconds: float) -> None:
    """SIGKILL, which nothing can catch, while it starts and while it measures."""
    process = _python("--minutes", "2", *SHORT)
    time.sleep(seconds)
    _kill(process)
    out = folder / "cluster_profile.json"
    if out.exists():
        assert read_document(ClusterProfile, out).num_devices == 2


@pytest.mark.slow
def test_links_killed_half_way_are_gone_on_with(folder: Path) -> None:
    """SIGKILL as soon as there is a file, after the first link; a later run measures the others."""
    out = folder / "cluster_profile.json"
    process = _python("--minutes", "2", *SHORT)
    _wait_for(out.exists)
    _kill(process)
    before = read_document(ClusterProfile, out)
    assert before.link_measurements and before.num_devices == 2
    process = _python("--minutes", "0.7", "--resume", *SHORT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    after = read_document(ClusterProfile, out)
    kept = {sample for m in before.link_measurements for sample in m.samples}
    assert kept < {sample for m in after.link_measurements for sample in m.samples}
    assert {m.operation for m in after.link_measurements} >= {"send", "all_reduce"}
    assert not [note for note in after.notes if "not all measured yet" in note]


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends a process that is still at work."""
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def _wait_for(happened: Callable[[], object]) -> None:
    for _ in range(1800):
        if happened():
            return
        time.sleep(0.1)


@pytest.mark.slow
def test_ctrl_c_on_a_real_run_keeps_what_is_measured(folder: Path) -> None:
    """Once the file has a point, an interrupt ends the run with 130 and a file to go on with."""
    out = folder / "cluster_profile.json"
    process = _python("--minutes", "5", "--cpu-devices", "1", *SHORT)
    _wait_for(lambda: out.exists() and read_document(ClusterProfile, out).measurements)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "go on with --resume" in said and "Traceback" not in said
    assert read_document(ClusterProfile, out).measurements


def test_help_is_light() -> None:
    """`--help` names the commands and imports neither JAX nor pynvml."""
    code = (
        "import sys; from profiler.answers import run; from profiler.cli import app; "
        "run(app, ['--help']); "
        "print(sorted({'jax', 'pynvml', 'matplotlib', 'scipy'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "--minutes" in done.stdout and "show" in done.stdout
    assert done.stdout.endswith("[]\n")
