"""A meter on a real device: which kernel ran, how much memory, and what fails."""

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
from profiler.peaks import peak_of
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
