"""Profiles of Piper (github.com/msr-fiddle/piper): a graph of layers with times for each degree.

`timePerSample` is in seconds and contains both passes, `memoryUsageA` the bytes that a sample keeps
in a layer; collectives are apart. Of the variants of a layer the one without recomputation is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from apss_jax.schema.document import read_json
from profiler.imports.imported import (
    Imported,
    PartTime,
    Point,
    Wanted,
    both_passes,
    foreign,
    layer_span,
    part_times,
    split_at,
)

TOOL: Final = "Piper"
PLAIN: Final = "vanilla"
NOTE: Final = "Piper gives both passes as one time; a third of it is taken as the forward pass"


def read_piper(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns embedding, layer and head at every degree; raises `InputError`."""
    return Imported(
        parts=tuple(part for path in files for part in _read(path, wanted)), notes=(NOTE,)
    )


def _read(path: Path, wanted: Wanted) -> list[PartTime]:
    data = read_json(path)
    try:
        nodes = sorted(data["nodes"], key=lambda node: node["id"])
        degrees = sorted({int(degree) for node in nodes for degree in node["TMPCs"]})
        found = []
        for degree in degrees:
            rows = [_plain(node, degree) for node in nodes]
            if all(row is not None for row in rows):
                found += _parts(path, wanted, degree, [row for row in rows if row is not None])
        return found
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise foreign(path, TOOL, "it is no graph of nodes with TMPCs") from None


def _plain(node: Any, degree: int) -> tuple[float, float] | None:
    """Returns seconds and kept bytes of a node without recomputation."""
    variants = node["TMPCs"].get(str(degree), ())
    for one in variants:
        if one["id"] == PLAIN:
            return float(one["timePerSample"]), float(one["memoryUsageA"])
    return None


def _parts(
    path: Path, wanted: Wanted, degree: int, rows: Sequence[tuple[float, float]]
) -> list[PartTime]:
    # Nodes that take no time are tensors between layers.
    working = [row for row in rows if row[0] > 0]
    place = f"{path} at degree {degree}"
    times_s = [time_s for time_s, _ in working]
    span = layer_span(times_s, wanted.num_layers, place)
    saved = split_at([kept_bytes for _, kept_bytes in working], span)
    return part_times(Point(degree, 1, place), *both_passes(split_at(times_s, span)), saved)
