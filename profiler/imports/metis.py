"""Profiles of Metis (github.com/SamsungLabs/Metis): `DeviceType.A100_tp2_bs4.json`.

Times are in ms, forward and backward pass in one; the first entry is the embedding, the last the
head. Tensor-parallel collectives ran inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from apss_jax.schema.document import read_json
from apss_jax.schema.errors import mistake
from profiler.imports.imported import (
    Imported,
    PartTime,
    Point,
    Wanted,
    both_passes,
    foreign,
    numbers_in_name,
    part_times,
    split_parts,
)

TOOL: Final = "Metis"
MS: Final = 1e-3
NOTE: Final = "Metis gives both passes as one time; a third of it is taken as the forward pass"


def read_metis(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns embedding, layer and head of every file; raises `InputError`."""
    return Imported(
        parts=tuple(part for path in files for part in _read(path, wanted)), notes=(NOTE,)
    )


def _read(path: Path, wanted: Wanted) -> list[PartTime]:
    degree, batch = numbers_in_name(
        path, r"_tp(\d+)_bs(\d+)\.json$", "DeviceType.A100_tp1_bs4.json"
    )
    data = read_json(path)
    try:
        model, times = data["model"], data["execution_time"]
        layers_ms = [float(value) for value in times["layer_compute_total_ms"]]
        sizes = model["parameters"]
        total, each = sizes["total_parameters_bytes"], sizes["parameters_per_layer_bytes"]
        whole_ms = float(times["forward_backward_time_ms"])
    except (KeyError, TypeError, ValueError):
        raise foreign(path, TOOL, "layer_compute_total_ms or its kin are missing") from None
    _check(path, layers_ms, whole_ms, total, each)
    total_s = split_parts([MS * value for value in layers_ms], wanted.num_layers, str(path))
    point = Point(degree, batch, str(path), comm_included=degree > 1)
    return part_times(point, *both_passes(total_s))


def is_sum(parts: Any, total: Any) -> bool:
    """Returns whether a value of JSON is a list of numbers that add up to another."""
    numbers = [*parts, total] if isinstance(parts, list) else [None]
    return all(isinstance(n, int | float) for n in numbers) and sum(parts) == total


def _check(path: Path, layers_ms: list[float], whole_ms: float, total: Any, each: Any) -> None:
    """Raises `InputError` where sums and their parts are not in one unit."""
    if not is_sum(each, total) or len(each) != len(layers_ms):
        rule = "is not the sum of parameters_per_layer_bytes"
        raise mistake("total_parameters_bytes", total, rule, "Repair it", file=str(path))
    if not 0.2 * whole_ms < sum(layers_ms) < 1.05 * whole_ms:
        rule = f"add up to {sum(layers_ms):.4g} ms of {whole_ms:.4g} ms: a unit is wrong"
        raise mistake("layer_compute_total_ms", "", rule, "Give milliseconds", file=str(path))
