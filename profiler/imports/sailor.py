"""Profiles of Sailor (github.com/eth-easl/sailor): `profile.json` of one model on one GPU type.

`{micro-batch: {tensor degree: {layer: [forward, backward, update]}}}`, all in seconds; layer 0 is
the embedding, the last one the head. Tensor-parallel collectives ran inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from apss_jax.schema.document import read_json
from profiler.imports.imported import (
    Imported,
    PartTime,
    Point,
    Wanted,
    foreign,
    layer_span,
    part_times,
    split_at,
)

TOOL: Final = "Sailor"
LEAST_BACKWARD_S: Final = 1e-5  # Sailor writes 0, or less than a launch takes, for none


def read_sailor(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns embedding, layer and head at every micro-batch and degree; raises `InputError`."""
    return Imported(parts=tuple(part for path in files for part in _read(path, wanted)))


def _read(path: Path, wanted: Wanted) -> list[PartTime]:
    data = read_json(path)
    try:
        return [
            part
            for batch, degrees in data.items()
            for degree, layers in degrees.items()
            for part in _parts(path, wanted, int(batch), int(degree), layers)
        ]
    except (AttributeError, TypeError, ValueError, KeyError, IndexError):
        raise foreign(path, TOOL, "it is not {micro-batch: {degree: {layer: times}}}") from None


def _parts(path: Path, wanted: Wanted, batch: int, degree: int, layers: Any) -> list[PartTime]:
    rows = np.array([layers[str(i)][:2] for i in range(len(layers))], float)
    place = f"{path} at {batch}.{degree}"
    span = layer_span(rows[:, 0].tolist(), wanted.num_layers, place)
    forward = split_at(rows[:, 0].tolist(), span)
    has_backward = bool((rows[1:-1, 1] > LEAST_BACKWARD_S).all())
    backward = split_at(rows[:, 1].tolist(), span) if has_backward else None
    if backward is not None and backward.embedding < LEAST_BACKWARD_S:
        backward = replace(backward, embedding=0.0)
    return part_times(Point(degree, batch, place, comm_included=degree > 1), forward, backward)
