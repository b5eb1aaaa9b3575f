"""Measured shapes that stand for one that was not measured: parts of its kind with other widths.

What a measurement says over the datasheet is carried from them: interpolated by the logarithm of a
part's weights between two of them, that of the nearest beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from apss_jax.datasheet.measured import Anchor, Correction, Found, find
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape
from apss_jax.schema.plan import Recompute
from apss_jax.schema.workload import Workload

Rows = list[LayerMeasurement]


@dataclass(frozen=True)
class Relative:
    """A measured shape; `name` is its key in the profile, `size` its multiplied weights."""

    name: str
    shape: LayerShape
    size: float
    rows: tuple[LayerMeasurement, ...]


@dataclass(frozen=True)
class Member:
    """A measured shape with what its points say."""

    size: float
    anchors: tuple[Anchor, ...]


@dataclass(frozen=True)
class Family:
    """What was measured of one kind of unit on one device type: itself, or others of its kind."""

    members: tuple[Member, ...]  # ascending by size
    size: float  # of the unit in question
    is_same: bool

    def find(
        self, tensor_parallel: int, micro_batch: int, seq_len: int, recompute: Recompute
    ) -> Found:
        """Returns the corrections at one point; those of other widths are no measurement of it."""
        found = [
            find(member.anchors, tensor_parallel, micro_batch, seq_len, recompute)
            for member in self.members
        ]
        if self.is_same:
            return found[0]
        included = any(one.comm_included for one in found)
        pairs = [
            (member.size, one)
            for member, one in zip(self.members, found, strict=True)
            if one.comm_included == included  # times with and without collectives do not mix
        ]
        return _between([size for size, _ in pairs], [one for _, one in pairs], self.size)


def relatives(
    shape: LayerShape, cluster: ClusterProfile, workload: Workload, device_type: str
) -> list[Relative]:
    """Returns what was measured on a type in the workload's precision: the shape, or its kind.

    Where the shape itself was measured it stands alone; others are ascending by size.
    """
    rows: dict[str, Rows] = {}
    for row in cluster.measurements:
        if row.precision == workload.precision and row.device_type == device_type:
            rows.setdefault(row.shape, []).append(row)
    known = [
        Relative(name, other, size_of(other), tuple(rows[name]))
        for name, other in cluster.shapes.items()
        if name in rows and kind_of(other) == kind_of(shape)
    ]
    same = [one for one in known if one.shape == shape]
    if same:
        together = tuple(row for one in same for row in one.rows)
        return [replace(same[0], rows=together)]
    return sorted(known, key=lambda one: (one.size, one.name))


def carried_over(
    shapes: Sequence[LayerShape], cluster: ClusterProfile, workload: Workload
) -> list[str]:
    """Returns in words which measured shapes stand for some that were not measured."""
    said = []
    for device_type in cluster.used_types:
        found = [relatives(shape, cluster, workload, device_type) for shape in shapes]
        borrowed = [
            known for shape, known in zip(shapes, found, strict=True)
            if known and known[0].shape != shape
        ]  # fmt: skip
        if borrowed:
            names = dict.fromkeys(one.name for known in borrowed for one in known)
            said.append(
                f"{len(borrowed)} of {len(shapes)} kinds of layers and ends were not measured on "
                f"{device_type}: the datasheet's times, with the measured ratios of "
                f"{', '.join(names)}"
            )
    return said


def kind_of(shape: LayerShape) -> tuple[object, ...]:
    """Returns what two shapes have in common that differ in widths alone."""
    layer = shape.layer
    if layer is None:
        return (shape.part,)
    return (shape.part, type(layer.mixer), type(layer.feed_forward))


def size_of(shape: LayerShape) -> float:
    """Returns the weights that a token is multiplied with, or else the width."""
    if shape.layer is None:
        return float(shape.hidden_size * (shape.vocab_size or 1 if shape.part == "head" else 1))
    weights = shape.layer.weights(shape.hidden_size)
    return sum(w.multiplied_fraction * w.num_parameters for w in weights) or 1.0


def _between(sizes: Sequence[float], found: Sequence[Found], size: float) -> Found:
    at, known = np.log(size), np.log(sizes)

    def value(values: list[float]) -> float:
        return float(np.interp(at, known, values))

    nearest = int(np.argmin(np.abs(known - at)))
    return Found(
        forward=Correction(
            value([one.forward.device_factor for one in found]),
            value([one.forward.host_s for one in found]),
        ),
        backward=Correction(
            value([one.backward.device_factor for one in found]),
            value([one.backward.host_s for one in found]),
        ),
        forward_measured=False,
        backward_measured=False,
        comm_included=found[0].comm_included,
        kept_factor=found[nearest].kept_factor,
    )
