"""What measurements say about the datasheet: corrections at measured points, carried to others.

At a measured point the corrected time is the measured one. Between points the corrections are
interpolated; beyond them the nearest holds, and a time follows the datasheet's shape from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apss_jax.datasheet.grid import SettingColumn
from apss_jax.datasheet.work import (
    BACKWARD_PRODUCTS,
    Work,
    other_part,
    smooth_maximum,
)
from apss_jax.schema.cluster import LayerMeasurement
from apss_jax.schema.plan import Recompute

# A device is taken to be at most this much slower than its datasheet rates; what a measurement
# exceeds it by is the host's: launches, whose time more samples do not add to. Whole frameworks
# differ from the rates by up to 1.28. Of 1.3, 1.5 and 2, 1.5 comes closest to the trials of AMP
# (arXiv 2210.07297) on T4 and V100, each cluster's by a stack calibrated on the other's.
LARGEST_DEVICE_FACTOR = 1.5
# Of a measured backward pass, what is left at least where recomputation is taken off it.
LEAST_OWN_FRACTION = 0.05


@dataclass(frozen=True)
class Correction:
    """One pass: time = smooth maximum of `device_factor` x device time, and `host_s`."""

    device_factor: float
    host_s: float


@dataclass(frozen=True)
class Anchor:
    """One measured point and what it says."""

    tensor_parallel: int
    micro_batch: int
    seq_len: int
    comm_included: bool
    has_backward: bool
    forward: Correction
    backward: Correction
    recompute: Recompute = "none"
    kept_factor: float | None = None  # kept bytes over counted ones; None: not measured


@dataclass(frozen=True)
class Found:
    """The corrections for one setting on one device type."""

    forward: Correction
    backward: Correction
    forward_measured: bool  # at or between measured points, not beyond them
    backward_measured: bool
    comm_included: bool
    kept_factor: float | None = None


def correction(measured_s: float, device_s: float, host_s: float) -> Correction:
    """Returns the correction under which the datasheet gives `measured_s`."""
    expected_s = float(smooth_maximum(np.array([device_s]), np.array([host_s]))[0])
    ratio = measured_s / expected_s if expected_s > 0 else np.inf
    if ratio <= LARGEST_DEVICE_FACTOR:
        return Correction(ratio, ratio * host_s)
    slowest_s = LARGEST_DEVICE_FACTOR * device_s
    rest_s = other_part(np.array([measured_s]), np.array([slowest_s]))
    return Correction(LARGEST_DEVICE_FACTOR, float(rest_s[0]))


def anchors_of(
    rows: Sequence[LayerMeasurement], work: Work, counted_bytes: SettingColumn, device_type: int
) -> list[Anchor]:
    """Returns the corrections of measurements on one type; `work` has their points as settings.

    `counted_bytes` is what a layer keeps by count, at the same points.
    """
    return [_anchor(row, work, counted_bytes, i, device_type) for i, row in enumerate(rows)]


def _anchor(
    row: LayerMeasurement, work: Work, counted_bytes: SettingColumn, i: int, device_type: int
) -> Anchor:
    at = (i, device_type)
    forward = correction(row.forward_s, float(work.forward_s[at]), float(work.host_forward_s[at]))
    if row.backward_s is None:
        # The datasheet's ratio of the passes; launching backward takes as much longer.
        backward = Correction(forward.device_factor, BACKWARD_PRODUCTS * forward.host_s)
    else:
        repeated_s = forward.device_factor * float(work.selective_s[at])
        own_s = _without_repeats(row, row.backward_s, repeated_s)
        backward = correction(own_s, float(work.backward_s[at]), float(work.host_backward_s[at]))
    counted = float(counted_bytes[i, 0])
    return Anchor(
        tensor_parallel=row.tensor_parallel,
        micro_batch=row.micro_batch,
        seq_len=row.seq_len,
        comm_included=row.tensor_comm_included and row.tensor_parallel > 1,
        has_backward=row.backward_s is not None,
        forward=forward,
        backward=backward,
        recompute=row.recompute,
        kept_factor=None if row.saved_bytes is None or not counted else row.saved_bytes / counted,
    )


def _without_repeats(row: LayerMeasurement, backward_s: float, selective_s: float) -> float:
    """Returns a measured backward pass without what recomputation is counted to repeat.

    A compiler repeats less than a whole forward pass, so that the rest may come out shorter than
    the pass without recomputation; both together are what was measured.
    """
    repeated_s = {"none": 0.0, "selective": selective_s, "full": row.forward_s}[row.recompute]
    return max(backward_s - repeated_s, LEAST_OWN_FRACTION * backward_s)


def find(
    anchors: Sequence[Anchor],
    tensor_parallel: int,
    micro_batch: int,
    seq_len: int,
    recompute: Recompute = "none",
) -> Found:
    """Returns the corrections at one point, from the nearest measured tensor degree.

    Points that ran with the same recomputation go first; without any, those that ran without.
    """
    near = _nearest_degree(_recomputed_alike(anchors, recompute), tensor_parallel)
    lines = [_Line.of(near, length) for length in sorted({a.seq_len for a in near})]
    lengths = np.log([line.seq_len for line in lines])
    at = np.log(seq_len)
    rows = np.array([line.at(micro_batch) for line in lines])
    values = [float(np.interp(at, lengths, column)) for column in rows.T]
    around = [line for line in lines if line.seq_len in _around(seq_len, lines)]
    is_inside = (
        near[0].tensor_parallel == tensor_parallel
        and lines[0].seq_len <= seq_len <= lines[-1].seq_len
        and all(line.spans(micro_batch) for line in around)
    )
    return Found(
        forward=Correction(values[0], values[1]),
        backward=Correction(values[2], values[3]),
        forward_measured=is_inside,
        backward_measured=is_inside and all(a.has_backward for a in near),
        comm_included=near[0].comm_included and near[0].tensor_parallel == tensor_parallel,
        kept_factor=_kept_factor(near, recompute, micro_batch, seq_len),
    )


def _recomputed_alike(anchors: Sequence[Anchor], recompute: Recompute) -> Sequence[Anchor]:
    for wanted in (recompute, "none"):
        found = [anchor for anchor in anchors if anchor.recompute == wanted]
        if found:
            return found
    return anchors


def _kept_factor(
    near: Sequence[Anchor], recompute: Recompute, micro_batch: int, seq_len: int
) -> float | None:
    """Returns the factor on counted bytes at the nearest point that ran like this, or None.

    Both grow with the tokens, and scores with their square: the factor hardly changes.
    """
    known = [a for a in near if a.recompute == recompute and a.kept_factor is not None]
    if not known:
        return None

    def distance(anchor: Anchor) -> tuple[float, float]:
        return (
            abs(float(np.log(anchor.seq_len / seq_len))),
            abs(float(np.log(anchor.micro_batch / micro_batch))),
        )

    return min(known, key=distance).kept_factor


def _nearest_degree(anchors: Sequence[Anchor], tensor_parallel: int) -> list[Anchor]:
    """Returns the anchors of one degree: the same, or else the nearest."""
    distance = {
        a.tensor_parallel: abs(np.log(a.tensor_parallel / tensor_parallel)) for a in anchors
    }
    degree = min(sorted(distance), key=lambda one: distance[one])
    pool = [a for a in anchors if a.tensor_parallel == degree]
    # Points of one degree with and without their collectives do not mix.
    included = [a for a in pool if a.comm_included]
    return included or pool


def _around(seq_len: int, lines: Sequence[_Line]) -> set[int]:
    """Returns the measured lengths next to `seq_len`, or it alone where it was measured."""
    lengths = [line.seq_len for line in lines]
    if seq_len in lengths:
        return {seq_len}
    below = [length for length in lengths if length < seq_len]
    above = [length for length in lengths if length > seq_len]
    return {*below[-1:], *above[:1]}


@dataclass(frozen=True)
class _Line:
    """The corrections of one sequence length along the measured micro-batches."""

    seq_len: int
    micro_batches: tuple[int, ...]
    values: tuple[tuple[float, float, float, float], ...]

    @staticmethod
    def of(anchors: Sequence[Anchor], seq_len: int) -> _Line:
        by_size = {a.micro_batch: a for a in anchors if a.seq_len == seq_len}
        sizes = tuple(sorted(by_size))
        return _Line(seq_len, sizes, tuple(_values(by_size[size]) for size in sizes))

    def at(self, micro_batch: int) -> list[float]:
        """Returns the four figures at a micro-batch, the nearest ones beyond the measured."""
        sizes = np.log(self.micro_batches)
        columns = zip(*self.values, strict=True)
        return [float(np.interp(np.log(micro_batch), sizes, column)) for column in columns]

    def spans(self, micro_batch: int) -> bool:
        """Returns whether the micro-batch lies within the measured ones."""
        return self.micro_batches[0] <= micro_batch <= self.micro_batches[-1]


def _values(anchor: Anchor) -> tuple[float, float, float, float]:
    return (
        anchor.forward.device_factor,
        anchor.forward.host_s,
        anchor.backward.device_factor,
        anchor.backward.host_s,
    )
