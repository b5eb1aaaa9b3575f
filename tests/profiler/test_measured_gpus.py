"""The real flow on imitated GPUs: only the drivers and the devices below it are fakes."""

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders import tiny_model
from fake_nvml import H200, L40S, SLICE
from imitated_gpus import imitate
from import_graph import ROOT
from workers import free_port, run_workers

from apss_jax.importers.load import load_model
from apss_jax.planning.search import search_plans
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.document import read_document, write_document
from profiler.answers import run
from profiler.bench import FORCED_DEVICES, bench_at_hand
from profiler.budget import Budget
from profiler.cli import app
from profiler.device_types import Probed
from profiler.points import Axes, planned, subjects_of
from profiler.session import Request, Session
from profiler.timing import Stopwatch

H200_NAME, L40S_NAME = "H200-SXM-141GB", "L40S-48GB"
TINY_POINTS = ("--seq-len", "16", "--micro-batch", "1,2", "--tp", "1", "--recompute", "none")
SHORT = Stopwatch(repeats=3, warm_ups=1)


@pytest.fixture
def kept_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets what the command would set for good."""
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.setenv(name, "false")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.setenv("XLA_FLAGS", f"{os.environ.get('XLA_FLAGS', '')} {FORCED_DEVICES}=1")


def _prepared_words() -> list[str]:
    """Returns what `make gpu` runs, after the name of the module."""
    said = subprocess.run(
        ["make", "--dry-run", "--old-file", ".venv/.installed", "gpu"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    line = next(line for line in said.splitlines() if "-m profiler" in line)
    return shlex.split(line)[3:]


def test_the_prepared_run_asks_for_a_7b_model_in_ten_minutes() -> None:
    """Its minutes and the fifth that a run may take longer are ten at most; its model has 7 B."""
    words = _prepared_words()
    flags = dict(zip(words[::2], words[1::2], strict=True))
    assert 1.2 * float(flags["--minutes"]) <= 10.0
    model = load_model(flags["--model"])
    assert any(subject.is_whole_layer for subject in subjects_of(model))
    assert 6e9 < model.num_parameters < 8e9


@pytest.mark.slow
def test_the_prepared_run_measures_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_environment: None, capsys: Any
) -> None:
    """From points to file: times of all parts, driver's memory and clocks, the library's type.

    The words are those of `make gpu`, with a tiny model, whose points a CPU runs, in its place.
    """
    monkeypatch.chdir(tmp_path)
    write_document(tiny_model(), tmp_path / "tiny.json")
    imitate(monkeypatch, [H200], ["NVIDIA H200"])
    words = ["tiny.json" if word == "llama-2-7b" else word for word in _prepared_words()]
    assert run(app, [*words, *TINY_POINTS]) == 0, capsys.readouterr().err
    profile = read_document(ClusterProfile, tmp_path / "gpu_profile.json")
    _is_that_of_an_h200(profile)
    parts = {profile.shapes[row.shape].part for row in profile.measurements}
    assert parts == {"layer", "embedding", "head", "optimizer"}
    assert {r.micro_batch for r in profile.measurements if r.shape == "tiny layer"} == {1, 2}


def _is_that_of_an_h200(profile: ClusterProfile) -> None:
    (facts,) = profile.device_facts
    assert (facts.name, facts.uuid) == (H200["name"], H200["uuid"])
    assert (facts.memory_bytes, facts.memory_source) == (H200["memory"], "NVML")
    assert profile.used_types == (H200_NAME,)
    for row in profile.measurements:
        assert (row.device_type, row.precision, row.provenance) == (H200_NAME, "bf16", "measured")
        assert row.forward_s > 0 and row.repeats == 11
        assert row.state.clock_hz == pytest.approx(1.98e9)
    layer = next(row for row in profile.measurements if row.shape == "tiny layer")
    assert layer.attention_kernel == "xla"  # NVIDIA's refuses a CPU
    assert layer.backward_s > 0 and layer.saved_bytes > 0 and layer.forward_flops > 0


def test_a_short_budget_keeps_the_most_informative_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When time is up the file has the first points of the plan, and says how many are left out."""
    imitate(monkeypatch, [H200], ["NVIDIA H200"])
    reads = iter(range(10**9))
    budget = Budget.of_minutes(1.0, clock=lambda: float(next(reads)))  # each look takes a second
    axes = Axes((1, 2), (16,), (1,), ("bf16",), ("none", "full"))
    bench = bench_at_hand(budget=budget, peaks=False)
    bench.meters[0].stopwatch = SHORT
    profile = Session(Request(tmp_path / "p.json", (tiny_model(),), axes, 64), bench).run()
    measured = [row.shape for row in profile.measurements]
    points = [point.subject.name for point in planned(subjects_of(tiny_model()), axes)]
    assert 0 < len(measured) < len(points)
    assert measured == points[: len(measured)]
    assert any("points were left out for time" in note for note in profile.notes)


@pytest.mark.parametrize("order", [(H200, L40S), (L40S, H200)])
def test_two_types_in_one_run_have_layers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[dict[str, Any], ...]
) -> None:
    """Each type is a node, with its own datasheet, memory, clocks and measured layers."""
    imitate(monkeypatch, order, [device["name"] for device in order])
    bench = bench_at_hand(budget=Budget.of_minutes(5.0), peaks=False)
    for meter in bench.meters:
        meter.stopwatch = SHORT
    monkeypatch.setattr("profiler.meter.scanned_bytes", lambda unit: None)  # has tests of its own
    axes = Axes((1,), (16,), (1,), ("bf16",), ("none",))
    profile = Session(Request(tmp_path / "p.json", (tiny_model(),), axes, 16), bench).run()
    points = _points_of_two_types(profile)
    assert points[H200_NAME] == points[L40S_NAME]
    assert {"tiny layer", "tiny embedding", "tiny head", "tiny optimizer"} <= points[H200_NAME]


def _points_of_two_types(profile: ClusterProfile) -> dict[str, set[str]]:
    """Returns the measured shapes of each type, after a look at all that is said of the two."""
    assert set(profile.used_types) == {H200_NAME, L40S_NAME}
    assert [(group.count, group.devices) for group in profile.nodes] == [(1, 1), (1, 1)]
    types = [group.device_type for group in profile.nodes]
    clocks = {H200_NAME: 1.98e9, L40S_NAME: 2.52e9}
    memory = {H200_NAME: H200["memory"], L40S_NAME: L40S["memory"]}
    for facts, name in zip(profile.device_facts, types, strict=True):
        assert facts.memory_bytes == memory[name]
    points: dict[str, set[str]] = {name: set() for name in types}
    for row in profile.measurements:
        assert row.state.clock_hz == pytest.approx(clocks[row.device_type])
        points[row.device_type].add(row.shape)
    return points


def test_a_slice_is_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's UUID of a slice is NVML's name of it; its rates are probed, its memory told."""
    imitate(monkeypatch, [SLICE], [SLICE["name"]])
    probed = Probed(flops_per_s=1e14, memory_bytes_per_s=1e12)
    monkeypatch.setattr("profiler.bench.probe_device", lambda *_: lambda precision: probed)
    bench = bench_at_hand(budget=Budget.of_minutes(1.0), peaks=False)
    (facts,) = bench.device_facts
    assert (facts.uuid, facts.memory_bytes) == (SLICE["uuid"], 20 * 2**30)
    (named,) = bench.types.values()
    assert named.library is None
    assert named.device_type.memory_bytes == 20 * 2**30
    assert named.device_type.peak_flops_per_s == {"bf16": 1e14}


PROCESS = """
import sys, pytest
from fake_nvml import H200, L40S
from imitated_gpus import imitate
from profiler.answers import run
from profiler.cli import app
from profiler.collectives import make_program
import profiler.sampling

own = (H200, L40S)[int(sys.argv[1])]
patch = pytest.MonkeyPatch()
imitate(patch, [own], [H200["name"], L40S["name"]])
real = lambda groups: [[device.real for device in group] for group in groups]
patch.setattr(profiler.sampling, "make_program", lambda o, g, s: make_program(o, real(g), s))
raise SystemExit(run(app, sys.argv[2:]))
"""


@pytest.mark.slow
def test_two_processes_with_devices_of_two_types_write_one_profile(tmp_path: Path) -> None:
    """Each process sees its own driver only; the file has both types, joined by a real link."""
    write_document(tiny_model(), tmp_path / "tiny.json")
    out = tmp_path / "p.json"
    words = ["--model", str(tmp_path / "tiny.json"), *TINY_POINTS, "--minutes", "2", "--no-peaks",
             "--out", str(out), "--coordinator", f"127.0.0.1:{free_port()}",
             "--num-processes", "2", "--process-id"]  # fmt: skip
    run_workers(PROCESS, [[str(rank), *words, str(rank)] for rank in range(2)])
    profile = read_document(ClusterProfile, out)
    assert all("tiny layer" in shapes for shapes in _points_of_two_types(profile).values())
    assert profile.links[profile.nodes[0].network].provenance == "measured"
    pins = {"micro_batch": (1,)}
    result = search_plans(tiny_model(), profile, global_batch=4, seq_len=16, pins=pins)
    assert result.plans[0].provenance["measured"] > 0
