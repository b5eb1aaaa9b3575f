"""A meter on a real device: which kernel ran, how much memory, and what fails."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from builders import tiny_layer

from apss_jax.schema.cluster import LayerShape
from apss_jax.schema.layers import Layer
from apss_jax.schema.machine import DeviceState
from profiler.budget import Budget
from profiler.kernels import NotMeasurable
from profiler.meter import DeviceMeter, PointFailed
from profiler.peaks import peak_in_own_process, peak_of
from profiler.points import Point, Subject
from profiler.timing import Samples, Stopwatch

ATTENTION = LayerShape(
    part="layer", hidden_size=8, layer=Layer(mixer=tiny_layer().mixer, num_norms=1)
)
MLP = LayerShape(
    part="layer", hidden_size=8, layer=Layer(feed_forward=tiny_layer().feed_forward, num_norms=1)
)
ONCE = Stopwatch(repeats=1, warm_ups=1, runs_in_order=False)


def point(shape: LayerShape, **changes: Any) -> Point:
    """Returns a small point."""
    return Point(Subject("it", shape, 0), **{"seq_len": 16, "precision": "fp32", **changes})


def meter(**changes: Any) -> DeviceMeter:
    """Returns a meter on this machine's first CPU device."""
    return DeviceMeter(jax.local_devices()[0], "CPU", ONCE, {}, **changes)


def test_a_kernel_that_refuses_is_replaced() -> None:
    """NVIDIA's kernel is not for CPUs: XLA's runs in its place, and the file says so."""
    one = meter(attention_kernel="cudnn")
    assert one.measure(point(ATTENTION, precision="bf16")).attention_kernel == "xla"
    assert one.attention_kernel == "cudnn"  # another shape may have it


def test_a_flash_kernel_is_not_asked_for_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 16-bit values alone, and a refusal would cost a compilation."""
    asked: list[str | None] = []

    def noted(shape: LayerShape, precision: str, shard: Any, *rest: int) -> Any:
        asked.append(shard.attention_kernel)
        raise NotMeasurable(precision)

    monkeypatch.setattr("profiler.meter.unit_of", noted)
    for precision in ("fp32", "tf32", "bf16"):
        with pytest.raises(PointFailed):
            meter(attention_kernel="cudnn").measure(point(ATTENTION, precision=precision))
    assert asked == [None, None, "cudnn"]


def test_a_part_without_attention_names_no_kernel() -> None:
    """A feed-forward part has no attention to speak of."""
    assert meter().measure(point(MLP)).attention_kernel is None


def test_too_little_memory_is_a_failure_of_the_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on; larger points are known not to fit."""

    def full(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")

    monkeypatch.setattr("profiler.meter.passes_of", full)
    with pytest.raises(PointFailed, match="does not fit") as found:
        meter(attention_kernel="cudnn").measure(point(MLP))
    assert found.value.too_big


def test_another_failure_is_told_in_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that gives up on one point does not end the run."""

    def broken(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: no algorithm\nand a long dump")

    monkeypatch.setattr("profiler.meter.passes_of", broken)
    with pytest.raises(PointFailed, match=r"^INTERNAL: no algorithm$") as found:
        meter().measure(point(MLP))
    assert not found.value.too_big


def test_a_peak_is_asked_once_for_each_layer() -> None:
    """A process starts for it, so only the first point of a whole layer has one."""
    asked: list[Point] = []
    one = meter(peak=lambda p, kernel: asked.append(p) or 7)
    whole = Subject("it", MLP, 0, is_whole_layer=True)
    scan = {"it"}  # what a scan would tell has a test of its own
    one._kept_fraction = {(name, "fp32", "none"): 1.0 for name in scan}
    rows = [one.measure(Point(whole, seq_len=n, precision="fp32")) for n in (8, 16)]
    assert [row.peak_bytes for row in rows] == [7, None]
    assert len(asked) == 1


def test_a_devices_state_is_read_right_after_its_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks fall while a scan is compiled and a process starts: they are asked for before."""
    order: list[str] = []

    class Noted(Stopwatch):
        def time(self, run: Any, **options: Any) -> Samples:
            order.append("time")
            return super().time(run, **options)

    def scanned(_: Any) -> int:
        order.append("scan")
        return 1

    def state() -> DeviceState:
        order.append("state")
        return DeviceState(clock_hz=1e9)

    monkeypatch.setattr("profiler.meter.scanned_bytes", scanned)
    one = meter(state=state, peak=lambda *_: order.append("peak"))
    one.stopwatch = Noted(repeats=1, warm_ups=1, runs_in_order=False)
    whole = Subject("it", MLP, 0, is_whole_layer=True)
    row = one.measure(Point(whole, seq_len=16, precision="fp32"))
    assert order == ["time", "time", "state", "scan", "peak"]
    assert row.state == DeviceState(clock_hz=1e9)


def test_a_scan_is_left_out_when_time_is_short() -> None:
    """Then what the forward program hands on stands for what a layer keeps, which is no less."""
    whole = Subject("it", MLP, 0, is_whole_layer=True)
    short = meter(budget=Budget.of_minutes(1e-9))
    row = short.measure(Point(whole, seq_len=16, precision="fp32"))
    assert row.saved_bytes > 0
    assert short.once_s == 0.0


def test_a_peak_is_that_of_both_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own process a point runs forward and backward before the allocator is asked."""
    ran: list[str] = []

    def stats(device: Any) -> dict[str, int]:
        ran.append(device.platform)
        return {"peak_bytes_in_use": 12345}

    monkeypatch.setattr("profiler.facts.memory_stats", stats)
    question = {
        "shape": MLP.model_dump(mode="json", exclude_none=True),
        "key": point(MLP).key,
        "kernel": None,
        "device": 0,
    }
    assert peak_of(question) == 12345
    assert ran == ["cpu"]


def test_without_an_allocators_count_the_peak_is_unknown() -> None:
    """A CPU counts nothing: None, not 0."""
    question = {
        "shape": MLP.model_dump(mode="json", exclude_none=True),
        "key": point(MLP).key,
        "kernel": None,
        "device": 0,
    }
    assert peak_of(question) is None


@pytest.mark.parametrize(("minutes", "longest_s"), [(1.0, 60.0), (5.0, 180.0), (None, 180.0)])
def test_a_peaks_process_ends_with_the_time(
    minutes: float | None, longest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs is ended when the run's time is up, and then there is no peak."""
    told: list[float] = []

    def hangs(command: list[str], *, timeout: float, **_: Any) -> Any:
        told.append(timeout)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr("profiler.peaks.subprocess.run", hangs)
    budget = Budget.of_minutes(minutes, clock=lambda: 100.0)
    assert peak_in_own_process(point(MLP), None, budget) is None
    assert told == [longest_s]


@pytest.mark.parametrize(
    ("code", "peak_bytes"),
    [
        ("print('{\"peak_bytes\": 12345}')", 12345),
        ("print('{\"peak_bytes\": null}')", None),
        ('print(\'{"peak_bytes": "much"}\')', None),
        ("print('{}')", None),
        ("print('7')", None),
        ("print('a library speaks here')", None),
        ("import sys; sys.stdout.buffer.write(bytes([255, 254]))", None),
        ("print('{\"peak_bytes\": 12345}'); raise SystemExit(1)", None),
        ("import time; time.sleep(60)", None),
    ],
)
def test_a_peaks_process_may_fail_in_any_way(
    code: str, peak_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that fails, hangs, or writes anything but a count gives None."""
    child = tmp_path / "child"
    child.write_text(f"#!{sys.executable}\n{code}\n")
    child.chmod(0o755)
    monkeypatch.setattr("profiler.peaks.sys.executable", str(child))
    minutes = 0.01 if "sleep" in code else None
    assert peak_in_own_process(point(MLP), None, Budget.of_minutes(minutes)) == peak_bytes


def test_a_peaks_process_that_cannot_start_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that is not there is a failure like others."""
    monkeypatch.setattr("profiler.peaks.sys.executable", "/nowhere/python")
    assert peak_in_own_process(point(MLP), None, Budget.of_minutes(None)) is None
