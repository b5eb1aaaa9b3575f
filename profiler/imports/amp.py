"""Profiles of AMP (github.com/DachengLi1/AMP): `gpt2_G4_2.npy`, and Sailor's `profile_2.npy`.

A vector of seconds, one forward pass of one sample in each of the model's parts, measured with the
tensor-parallel degree at the end of the name, collectives inside the node included.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from profiler.imports.imported import (
    Imported,
    PartTime,
    Point,
    Wanted,
    foreign,
    numbers_in_name,
    part_times,
    split_parts,
)

TOOL: Final = "AMP"


def read_amp(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns embedding, layer and head of every file; raises `InputError`."""
    return Imported(parts=tuple(part for path in files for part in _read(path, wanted)))


def _read(path: Path, wanted: Wanted) -> list[PartTime]:
    (degree,) = numbers_in_name(path, r"_(\d+)\.npy$", "gpt2_G4_2.npy")
    try:
        times = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError):
        raise foreign(path, TOOL, "it is no array of numpy") from None
    if times.ndim != 1 or times.dtype.kind != "f":
        raise foreign(path, TOOL, "it is no vector of seconds")
    split = split_parts(times.tolist(), wanted.num_layers, str(path))
    return part_times(Point(degree, 1, str(path), comm_included=degree > 1), split)
