"""Profiles of AMP (github.com/DachengLi1/AMP): `gpt2_G4_2.npy`, and Sailor's `profile_2.npy`.

A vector of seconds, one forward pass of one sample in each of the model's parts, measured with the
tensor-parallel degree at the end of the name, collectives inside the node included.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
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
# What numpy makes of headers: it evaluates them as literals of Python, then sorts their keys.
UNREADABLE: Final = (
    *(ValueError, TypeError, OverflowError, SyntaxError, TokenError),
    *(OSError, EOFError, MemoryError, RecursionError),
)


def read_amp(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns embedding, layer and head of every file; raises `InputError`."""
    return Imported(parts=tuple(part for path in files for part in _read(path, wanted)))


def _read(path: Path, wanted: Wanted) -> list[PartTime]:
    (degree,) = numbers_in_name(path, r"_(\d+)\.npy$", "gpt2_G4_2.npy")
    try:
        # A map takes no more memory than the file has bytes, whatever its header says.
        times = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(times, np.ndarray):
            raise ValueError("an archive")
    except UNREADABLE:
        raise foreign(path, TOOL, "it is no array of numpy") from None
    if times.ndim != 1 or times.dtype.kind != "f":
        raise foreign(path, TOOL, "it is no vector of seconds")
    split = split_parts(times.tolist(), wanted.num_layers, str(path))
    return part_times(Point(degree, 1, str(path), comm_included=degree > 1), split)
