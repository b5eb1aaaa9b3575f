"""Profiles of Aceso (github.com/microsoft/SuperScaler): times of operators, and of collectives.

`gpt_1_3B_mbs4_tp2_algo0.csv` holds microseconds of each operator of one layer, collectives apart;
`prim_gpt_1_3B_all_reduce_4gpus.csv` milliseconds over MB; `p2p_inter_node.csv` GB/s over MB. MB are
2**20 bytes: Aceso measures tensors by their binary sizes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from apss_jax.schema.errors import mistake
from apss_jax.schema.link_measurements import LinkSample, Operation
from profiler.fit import bus_fraction
from profiler.imports.imported import (
    Imported,
    LinkDatum,
    PartTime,
    Point,
    Split,
    Wanted,
    foreign,
    numbers_in_name,
    part_times,
    read_text,
)

TOOL: Final = "Aceso"
US: Final = 1e-6
MS: Final = 1e-3
MEGABYTE: Final = 2**20
GIGABYTE: Final = 1e9
COLLECTIVE: Final = re.compile(
    r"_(all_reduce|all_gather|reduce_scatter|all_to_all)_(\d+)gpus\.csv$"
)
COLUMNS: Final = ["op_name", "forward-compute", "backward-compute"]
OF_LAYER: Final = "enc-"
OF_EMBEDDING: Final = "encoder-embedding"
# What one device can send or receive: beyond, a time or a size is in another unit.
FASTEST_BYTES_PER_S: Final = 2e12


def read_aceso(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns what each file holds, told by its name; raises `InputError`."""
    parts: list[PartTime] = []
    links: list[LinkDatum] = []
    for path in files:
        match = COLLECTIVE.search(path.name)
        if match is not None:
            links.append(_collective(path, match, wanted))
        elif path.name.startswith("p2p_"):
            links.append(_transfers(path, wanted))
        else:
            parts += _operators(path)
    return Imported(tuple(parts), tuple(links), precision="fp16" if parts else None)


def _operators(path: Path) -> list[PartTime]:
    form = "gpt_1_3B_mbs4_tp2_algo0.csv"
    batch, degree = numbers_in_name(path, r"_mbs(\d+)_tp(\d+)_algo\d+\.csv$", form)
    rows = _table(path)
    if not rows or not set(COLUMNS) <= set(rows[0]):
        raise foreign(path, TOOL, f"it has no columns {', '.join(COLUMNS)}")
    names = [row["op_name"] for row in rows]
    if OF_EMBEDDING not in names or not any(name.startswith(OF_LAYER) for name in names):
        raise foreign(path, TOOL, "it has no operators of a GPT")
    forward, backward = (_sums(path, rows, column) for column in COLUMNS[1:])
    return part_times(Point(degree, batch, str(path)), forward, backward)


def _sums(path: Path, rows: Sequence[dict[str, str]], column: str) -> Split:
    """Returns the seconds of each part's operators."""
    found = {"embedding": 0.0, "layer": 0.0, "head": 0.0}
    for row in rows:
        name = row["op_name"]
        part = "embedding" if name == OF_EMBEDDING else "layer" if OF_LAYER in name[:4] else "head"
        found[part] += US * _number(path, f"{name}.{column}", row[column])
    return Split(**found)


def _collective(path: Path, match: re.Match[str], wanted: Wanted) -> LinkDatum:
    operation = cast(Operation, match[1])  # the pattern holds four of them
    size = int(match[2])
    rows = _lines(path)
    if not rows or rows[0] != ["data_size(MB)", "time(ms)"]:
        raise foreign(path, TOOL, "it has no columns data_size(MB) and time(ms)")
    pairs = sorted((_number(path, "size", r[0]), _number(path, "time", r[1])) for r in rows[1:])
    # Aceso rounds the smallest messages to 0 MB.
    samples = [_sample(MEGABYTE * mb, MS * time_ms) for mb, time_ms in pairs if mb * time_ms > 0]
    _check_rate(path, samples, bus_fraction(operation, size))
    return LinkDatum(operation, wanted.group(size), samples=tuple(samples))


def _transfers(path: Path, wanted: Wanted) -> LinkDatum:
    """Returns rates of one sender: inside a node, or from the first node to the second."""
    rows = [row for row in _lines(path) if row]
    if len(rows) != 2 or len(rows[0]) != len(rows[1]):
        raise foreign(path, TOOL, "it is no line of MB and one of GB/s")
    sizes, rates = ([_number(path, "p2p", word) for word in row] for row in rows)
    samples = [
        _sample(MEGABYTE * size, MEGABYTE * size / (GIGABYTE * rate))
        for size, rate in zip(sizes, rates, strict=True)
        if size * rate > 0
    ]
    _check_rate(path, samples, 1.0)
    return LinkDatum("send", wanted.group(2, strided="inter" in path.name), samples=tuple(samples))


def _sample(message_bytes: float, time_s: float) -> LinkSample:
    return LinkSample(message_bytes=round(message_bytes), median_s=time_s, fastest_s=time_s)


def _check_rate(path: Path, samples: Sequence[LinkSample], factor: float) -> None:
    rates = [factor * s.message_bytes / s.median_s for s in samples]
    if not rates or max(rates) > FASTEST_BYTES_PER_S or max(rates) < 1e6:
        rule = "gives rates that no link has: a unit is wrong"
        raise mistake("(whole file)", "", rule, "Give MB, ms and GB/s", file=str(path))


def _lines(path: Path) -> list[list[str]]:
    """Returns the lines of a table as lists of texts."""
    try:
        return list(csv.reader(io.StringIO(read_text(path))))
    except csv.Error as error:  # a field of more than 131,072 characters, a lone carriage return
        raise foreign(path, TOOL, str(error)) from None


def _table(path: Path) -> list[dict[str, str]]:
    """Returns the lines of a table by the names of its columns; raises `InputError`."""
    head, *rows = _lines(path) or [[]]
    if any(len(row) not in (0, len(head)) for row in rows):
        raise foreign(path, TOOL, "a line has other columns than the first")
    return [dict(zip(head, row, strict=True)) for row in rows if row]


def _number(path: Path, key: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise mistake(key, text, "is not a time, size or rate", "Correct it", file=str(path))
    return value
