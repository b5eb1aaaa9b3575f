"""One point, measured on a device: both passes, their bytes and operations, the device's state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import jax

from apss_jax.schema.cluster import FULL, LayerMeasurement, Precision
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.machine import DeviceState
from apss_jax.schema.weights import Weight
from apss_jax.units import TFLOP
from profiler.budget import Budget
from profiler.kernels import FlashKernel, NotMeasurable, Shard
from profiler.layers import DTYPES, Unit, unit_of
from profiler.points import Point
from profiler.programs import (
    MissingWork,
    Passes,
    check_work,
    passes_of,
    scanned_bytes,
    update_passes,
)
from profiler.timing import Samples, Stopwatch

MOST_PASS_S: Final = 10.0  # for all repeats of one pass
LARGEST_SHARE: Final = 1 / 30  # of the time left, for one pass: more points say more than repeats
# A rate so far above the datasheet's is a clock that stopped before the work was done.
MOST_PEAK_FRACTION: Final = 1.05
SCAN_COMPILATIONS: Final = 4.0  # what compiling both scans takes, in compilations of a point
BACKWARD_PRODUCTS: Final = 2.0  # gradients of the input and of the weight
PROCESS_S: Final = 15.0  # until a new process has its device
XLA: Final = "xla"  # attention as the compiler writes it
PRODUCTS: Final = {"fp32": "highest", "tf32": "tensorfloat32"}
NEEDS_SPACE: Final = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")


class PointFailed(Exception):
    """A point that gives no measurement; says why. `too_big`: the device's memory is too small."""

    def __init__(self, reason: str, *, too_big: bool = False) -> None:
        super().__init__(reason)
        self.too_big = too_big


class Meter(Protocol):
    """Measures points on one device type: a device at hand, or one that is imitated."""

    device_type: str
    once_s: float  # of the last point, what later ones of its shape do not need again

    def measure(self, point: Point) -> LayerMeasurement:
        """Returns the measurement of a point; raises `PointFailed`."""


StateFn = Callable[[], DeviceState | None]
"""Returns how a device runs at this moment."""

PeakFn = Callable[[Point, str | None], int | None]
"""Returns the most bytes that a process with nothing but this point held, None if unknown."""


@dataclass
class DeviceMeter:
    """Measures on one device of JAX."""

    device: Any
    device_type: str
    stopwatch: Stopwatch
    peak_flops_per_s: dict[Precision, float]  # of the datasheet; empty where there is none
    state: StateFn = lambda: None
    peak: PeakFn | None = None
    attention_kernel: FlashKernel | None = None  # "cudnn" where the device may have it
    budget: Budget = field(default_factory=lambda: Budget.of_minutes(None))
    once_s: float = 0.0
    _compile_s: float = 0.0
    _peaked: set[str] = field(default_factory=set)
    _refused: set[tuple[str, Precision]] = field(default_factory=set)  # by the attention kernel
    _kept_fraction: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def measure(self, point: Point) -> LayerMeasurement:
        """Returns the measurement of a point; raises `PointFailed`."""
        try:
            with jax.default_device(self.device), _products(point.precision):
                return self._measured(point)
        except (NotMeasurable, MissingWork) as error:
            raise PointFailed(str(error)) from None
        except jax.errors.JaxRuntimeError as error:
            text = str(error)
            too_big = any(word in text for word in NEEDS_SPACE)
            reason = "it does not fit in memory" if too_big else text.splitlines()[0]
            raise PointFailed(reason, too_big=too_big) from None

    def _measured(self, point: Point) -> LayerMeasurement:
        self.once_s, start_s = 0.0, self.budget.spent_s
        passes, unit = self._prepared(point)
        self._compile_s = self.budget.spent_s - start_s
        self._check_work(point, passes)
        most_s = min(MOST_PASS_S, LARGEST_SHARE * self.budget.left_s)
        forward = self.stopwatch.time(passes.forward, most_s=most_s)
        backward = None
        if passes.backward is not None:
            backward = self.stopwatch.time(passes.backward, most_s=most_s)
        state = self.state()  # what follows compiles and waits, and clocks fall meanwhile
        row = LayerMeasurement(
            shape=point.subject.name,
            device_type=self.device_type,
            tensor_parallel=point.tensor_parallel,
            micro_batch=point.micro_batch,
            seq_len=point.seq_len,
            precision=point.precision,
            recompute=point.recompute,
            forward_s=forward.time_s,
            backward_s=None if backward is None else backward.time_s,
            repeats=len(forward.times_s),
            spread_fraction=_wider(forward, backward),
            saved_bytes=self._saved_bytes(point, unit, passes),
            workspace_bytes=passes.workspace_bytes,
            peak_bytes=self._peak_bytes(point),
            # Of grouped products the compiler counts every expert on every token.
            forward_flops=None if _has_experts(point) else passes.forward_flops,
            backward_flops=None if _has_experts(point) else passes.backward_flops,
            attention_kernel=self._kernel_of(point),
            state=state,
        )
        check_rate(row, expected_flops(point), self.peak_flops_per_s.get(point.precision))
        return row

    def _prepared(self, point: Point) -> tuple[Passes, Unit | None]:
        if point.subject.shape.part == "optimizer":
            return _update_of(point), None
        if self._kernel_of(point) not in (None, XLA):
            try:
                return self._compiled(point)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if any(word in str(error) for word in NEEDS_SPACE):
                    raise
                # It has no kernel for this head size or type; other shapes may still have one.
                self._refused.add((point.subject.name, point.precision))
        return self._compiled(point)

    def _compiled(self, point: Point) -> tuple[Passes, Unit]:
        unit = unit_of(
            point.subject.shape,
            point.precision,
            Shard(point.tensor_parallel, self._flash(point), point.recompute == "selective"),
            point.micro_batch,
            point.seq_len,
        )
        return passes_of(unit, point.recompute), unit

    def _check_work(self, point: Point, passes: Passes) -> None:
        # Elsewhere products are calls into libraries, which the compiler does not count.
        if self.device.platform == "cpu":
            check_work(str(point), passes.compiled_flops, expected_flops(point))

    def _saved_bytes(self, point: Point, unit: Unit | None, passes: Passes) -> int | None:
        """Returns what a layer keeps inside a larger program: measured once, carried to others."""
        if unit is None or passes.saved_bytes is None:
            return None
        if not self._scan_tells(point):
            return passes.saved_bytes
        key = (point.subject.name, point.precision, point.recompute)
        if key not in self._kept_fraction:
            if not self.budget.allows(SCAN_COMPILATIONS * self._compile_s):
                return passes.saved_bytes
            start_s = self.budget.spent_s
            found = scanned_bytes(unit)
            self._kept_fraction[key] = found / passes.saved_bytes if found else 1.0
            self.once_s += self.budget.spent_s - start_s
        return round(self._kept_fraction[key] * passes.saved_bytes)

    def _scan_tells(self, point: Point) -> bool:
        is_whole = point.subject.is_whole_layer and point.recompute != "full"
        # XLA computes 16-bit values in FP32 on CPU and then keeps those.
        return is_whole and (self.device.platform != "cpu" or DTYPES[point.precision] == "float32")

    def _peak_bytes(self, point: Point) -> int | None:
        """Returns the peak of the first point of a whole layer: a process starts for it."""
        name = point.subject.name
        is_asked = point.subject.is_whole_layer and point.recompute == "none"
        if self.peak is None or not is_asked or name in self._peaked:
            return None
        if not self.budget.allows(PROCESS_S + SCAN_COMPILATIONS * self._compile_s):
            return None
        start_s = self.budget.spent_s
        self._peaked.add(name)
        found = self.peak(point, self._flash(point))
        self.once_s += self.budget.spent_s - start_s
        return found

    def _kernel_of(self, point: Point) -> str | None:
        """Returns what runs the attention of a point, None where it has none."""
        layer = point.subject.shape.layer
        return None if layer is None or layer.mixer is None else self._flash(point) or XLA

    def _flash(self, point: Point) -> FlashKernel | None:
        """Returns the kernel to ask for: it takes 16-bit values alone."""
        refused = (point.subject.name, point.precision) in self._refused
        return None if refused or point.precision in FULL else self.attention_kernel


def _update_of(point: Point) -> Passes:
    count = point.subject.shape.num_parameters
    if count is None or point.precision not in DTYPES:
        raise NotMeasurable("an update of no parameters, or in a precision that has no type here")
    return update_passes(count, DTYPES[point.precision])


def _products(precision: Precision) -> AbstractContextManager[Any]:
    return jax.default_matmul_precision(PRODUCTS.get(precision, "default"))


def _wider(forward: Samples, backward: Samples | None) -> float | None:
    spreads = [s.spread_fraction for s in (forward, backward) if s is not None]
    known = [spread for spread in spreads if spread is not None]
    return max(known) if known else None


def expected_flops(point: Point) -> float:
    """Returns the operations of a forward pass's products with weights, on one tensor rank."""
    shape = point.subject.shape
    if shape.part == "head" and shape.vocab_size is not None:
        return 2.0 * point.tokens * shape.hidden_size * shape.vocab_size / point.tensor_parallel
    if shape.layer is None:
        return 0.0
    return sum(_product_flops(w, point) for w in shape.layer.weights(shape.hidden_size))


def _product_flops(weight: Weight, point: Point) -> float:
    shared = 1 if weight.shard == "replicated" else point.tensor_parallel
    return 2.0 * point.tokens * weight.multiplied_fraction * weight.num_parameters / shared


def check_rate(row: LayerMeasurement, forward_flops: float, peak_flops_per_s: float | None) -> None:
    """Raises `PointFailed` where a pass was faster than the device can compute.

    `forward_flops` are the operations that the weights ask for; the backward pass has twice those.
    """
    if peak_flops_per_s is None:
        return
    for name, flops, time_s in (
        ("forward", forward_flops, row.forward_s),
        ("backward", BACKWARD_PRODUCTS * forward_flops, row.backward_s),
    ):
        if time_s and flops / time_s > MOST_PEAK_FRACTION * peak_flops_per_s:
            rate, most = flops / time_s / TFLOP, peak_flops_per_s / TFLOP
            raise PointFailed(
                f"its {name} pass would have run at {rate:.3g} TFLOP/s on a device of {most:.3g}: "
                "the time is not that of the work"
            )


def _has_experts(point: Point) -> bool:
    layer = point.subject.shape.layer
    return layer is not None and isinstance(layer.feed_forward, MoeMlp)
