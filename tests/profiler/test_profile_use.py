"""A profile is what a search takes as it is: imitated ones, and one measured on this machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import tiny_model
from import_graph import ROOT

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.planning.estimate import estimate_plan
from apss_jax.planning.search import search_plans
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.document import read_document, write_document
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Plan
from profiler.bench import CPU_STOPWATCH, bench_at_hand
from profiler.budget import Budget
from profiler.mocks import mocked_profile
from profiler.points import Axes
from profiler.session import Request, Session
from profiler.timing import Stopwatch

AXES = Axes((1, 2), (1024,), (1, 2), ("bf16",), ("none", "full"))


def mocked() -> ClusterProfile:
    """Returns a mocked node of H100 with layers of GPT-2."""
    return mocked_profile(load_cluster("1x8xH100-SXM5-80GB"), load_model("gpt2"), axes=AXES)


def planned(profile: ClusterProfile, stack: str | None = None, micro_batch: int = 1) -> Plan:
    """Returns one plan of GPT-2 on the profile."""
    layout = Layout(1, 1, 8, micro_batch=micro_batch)
    return estimate_plan(
        load_model("gpt2"), profile, layout, global_batch=32, seq_len=1024, stack=stack
    ).plan


@pytest.mark.slow
def test_a_mocked_profile_is_searched_and_said_to_be_mocked() -> None:
    """Every plan is measured in full as far as the search knows, and the result warns of mocks."""
    result = search_plans(load_model("gpt2"), mocked(), global_batch=32, seq_len=1024, top=2)
    assert result.plans
    assert any("mocked" in text for text in (*result.warnings, *result.assumptions))


def test_measured_times_are_the_plans_times() -> None:
    """A stage of all layers takes what its layers and ends were measured to take."""
    profile, (stage,) = mocked(), planned(mocked()).stages
    rows = {
        row.shape: row
        for row in profile.measurements
        if (row.micro_batch, row.tensor_parallel, row.recompute) == (1, 1, "none")
    }
    layer, ends = rows["gpt2 layer"], [rows["gpt2 embedding"], rows["gpt2 head"]]
    assert stage.forward_s == pytest.approx(12 * layer.forward_s + sum(r.forward_s for r in ends))
    assert stage.backward_s == pytest.approx(
        12 * layer.backward_s + sum(r.backward_s for r in ends)
    )


@pytest.mark.parametrize(
    ("stack", "micro_batch", "share"),
    [(None, 1, 1.0), (None, 2, 1.0), (None, 4, 0.0), ("nemo", 1, 0.0)],
)
def test_a_plan_says_what_share_was_measured(
    stack: str | None, micro_batch: int, share: float
) -> None:
    """All of it at measured points; none beyond them, and none under another stack."""
    plan = planned(mocked(), stack, micro_batch)
    assert plan.provenance["measured"] == pytest.approx(share)


def test_another_model_takes_the_ratios_of_a_profile_and_says_so() -> None:
    """GPT-2 medium on measurements of GPT-2: that they are slow carries over, none is its own."""
    profile = mocked()
    rows = [
        row.model_copy(
            update={"forward_s": 1.4 * row.forward_s, "backward_s": 1.4 * row.backward_s}
        )
        for row in profile.measurements
        if row.backward_s is not None
    ]
    slower = profile.model_copy(update={"measurements": tuple(rows)})
    usual, slow = (
        estimate_plan(load_model("gpt2-medium"), one, Layout(1, 1, 8, micro_batch=1),
                      global_batch=32, seq_len=1024)
        for one in (profile, slower)
    )  # fmt: skip
    (before,), (after,) = usual.plan.stages, slow.plan.stages
    assert after.forward_s == pytest.approx(1.4 * before.forward_s, rel=0.01)
    assert slow.plan.provenance["measured"] == 0.0
    (said,) = [text for text in slow.assumptions if "were not measured" in text]
    assert "gpt2 layer" in said and "H100-SXM5-80GB" in said


def test_another_stack_takes_links_and_memory_over() -> None:
    """Under another stack the capacity is the profile's."""
    small = mocked()
    types = {
        name: device.model_copy(update={"memory_bytes": device.memory_bytes // 2})
        for name, device in small.device_types.items()
    }
    halved = small.model_copy(update={"device_types": types})
    capacities = [
        planned(profile, "nemo").stages[0].memory_bytes.capacity for profile in (small, halved)
    ]
    assert capacities[1] == pytest.approx(capacities[0] / 2, rel=1e-6)


def measured_here(out: Path) -> ClusterProfile:
    """Returns a real profile of this machine's CPU, of a tiny model's layers."""
    watch = Stopwatch(repeats=3, warm_ups=1, statistic="least", runs_in_order=False)
    bench = bench_at_hand(budget=Budget.of_minutes(2.0))
    context = bench.context.__class__(**{**bench.context.__dict__, "stopwatch": watch})
    for meter in bench.meters:
        meter.stopwatch = watch
    bench = bench.__class__(**{**bench.__dict__, "context": context})
    axes = Axes((1,), (64,), (1,), ("fp32",), ("none",))
    return Session(Request(out, (tiny_model(),), axes, 1024), bench).run()


def test_a_profile_of_this_cpu_drives_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured for real, read back from its file, and taken by a search as it is."""
    out = tmp_path / "cpu.json"
    monkeypatch.setattr("profiler.meter.scanned_bytes", lambda unit: None)  # has a test of its own
    made = measured_here(out)
    read = read_document(ClusterProfile, out)
    assert read == made
    assert {row.shape for row in read.measurements} >= {"tiny layer", "tiny head", "tiny embedding"}
    result = search_plans(
        tiny_model(), read, global_batch=4, seq_len=64, pins={"micro_batch": (1,)}
    )
    plan = result.plans[0]
    assert plan.precision == "fp32"
    assert plan.cost.step_time_s > 0
    assert plan.provenance["measured"] > 0.5


@pytest.mark.slow
def test_two_forced_devices_give_links_and_plans_in_one_command(tmp_path: Path) -> None:
    """The command measures links between two devices, and a search in another process uses it."""
    write_document(tiny_model(hidden_size=8), tmp_path / "tiny.json")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def ran(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    ran("profiler", "--minutes", "1.5", "--model", "tiny.json", "--seq-len", "64",
        "--micro-batch", "1", "--recompute", "none")  # fmt: skip
    profile = read_document(ClusterProfile, tmp_path / "cluster_profile.json")
    assert profile.num_devices == 2
    assert profile.link_measurements and profile.measurements
    found = ran("apss_jax.search", "--model", "tiny.json", "--cluster", "cluster_profile.json",
                "--global-batch", "4", "--seq-len", "64")  # fmt: skip
    assert "Plans, best first" in found


def test_a_cpu_takes_the_least_of_its_repeats() -> None:
    """Others on the machine only ever make a time longer."""
    assert CPU_STOPWATCH.statistic == "least"
    assert not CPU_STOPWATCH.runs_in_order
