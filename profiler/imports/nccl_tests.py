"""Output of nccl-tests (github.com/NVIDIA/nccl-tests), as printed, or as a table with commas.

Each line holds a size in bytes, a time and two bandwidths in GB/s. The bus bandwidth is the size
over the time, times a factor that only the operation and the number of ranks decide: it tells both
whether the units are those, and which operation it was.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from apss_jax.schema.errors import mistake
from apss_jax.schema.link_measurements import LinkSample, Operation
from profiler.fit import bus_fraction
from profiler.imports.imported import Imported, LinkDatum, Wanted, foreign, read_text

TOOL: Final = "nccl-tests"
RANK: Final = re.compile(r"#\s+Rank\s+\d+ .* on\s+(\S+) device\s+\d+")
ADDS: Final = re.compile(r"^\s*\d+\s+\d+\s+\w+\s+(sum|prod|max|min|avg)\b", re.MULTILINE)
NAME: Final = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv)_perf\b")
OPERATIONS: Final[dict[str, Operation]] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send",
}
SECONDS: Final = {"us": 1e-6, "ns": 1e-9, "ms": 1e-3}
GIGABYTE: Final = 1e9
CLOSE: Final = 0.05  # bandwidths are printed with two decimals
LEAST_BUS: Final = 0.5e9  # below, two decimals are too few to check a unit by


@dataclass(frozen=True)
class _Line:
    message_bytes: int
    time_s: float
    bus_bytes_per_s: float


def read_nccl_tests(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns the samples of each file; raises `InputError` for units that contradict."""
    return Imported(links=tuple(_read(path, wanted) for path in files))


def _read(path: Path, wanted: Wanted) -> LinkDatum:
    text = read_text(path)
    lines = _table(text, path) if text.lstrip().startswith("size(B),") else _printed(text, path)
    if not lines:
        raise foreign(path, TOOL, "it has no line of figures")
    factor = _factor(lines, path)
    hosts = RANK.findall(text)
    devices = _devices(hosts, wanted) if hosts else None
    operation = _operation(text, wanted, factor, len(devices) if devices else None, path)
    if devices is None:
        devices = wanted.group(_group_size(operation, factor, path))
    _check_factor(operation, len(devices), factor, path)
    samples = tuple(
        LinkSample(message_bytes=x.message_bytes, median_s=x.time_s, fastest_s=x.time_s)
        for x in lines
    )
    return LinkDatum(operation, devices, samples=samples)


def _printed(text: str, path: Path) -> list[_Line]:
    """Returns the out-of-place figures of printed output: size, ..., time, algbw, busbw, ..."""
    if "busbw" not in text:
        raise foreign(path, TOOL, "it has no column busbw")
    if not re.search(r"\(us\)", text):
        raise mistake("time", "", "is not in (us)", "Give the output as printed", file=str(path))
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].isdigit() and words[1].isdigit():
            at = 5  # after size, count, type, redop, root
            found.append(_line(words[0], words[at], SECONDS["us"], words[at + 2], path))
    return [line for line in found if line is not None]


def _line(size: str, time: str, unit_s: float, bus: str, path: Path) -> _Line | None:
    """Returns the figures of a line, None where nothing was sent; raises `InputError`."""
    if not re.fullmatch(r"[0-9]{1,15}", size):
        raise mistake("size", size, "is no number of bytes", "Repair the line", file=str(path))
    try:
        time_s, bus_bytes_per_s = float(time) * unit_s, float(bus) * GIGABYTE
    except ValueError:
        time_s = bus_bytes_per_s = -1.0
    if not (0 <= time_s < math.inf and 0 <= bus_bytes_per_s < math.inf):
        rule = f"has {time!r} for a time and {bus!r} for a bandwidth"
        raise mistake(f"size {size}", "", rule, "Repair the line", file=str(path))
    return _Line(int(size), time_s, bus_bytes_per_s) if int(size) and time_s else None


def _table(text: str, path: Path) -> list[_Line]:
    """Returns the out-of-place figures of a table: size(B),count,type,time(ns),busbw(GB/s),..."""
    rows = [line.split(",") for line in text.split()]
    head = rows[0]
    unit = re.fullmatch(r"time\((\w+)\)", head[3]) if len(head) > 4 else None
    if unit is None or unit[1] not in SECONDS or head[4] != "busbw(GB/s)":
        raise foreign(path, TOOL, "its header names no time and busbw(GB/s)")
    scale = SECONDS[unit[1]]
    if any(len(row) < len(head) for row in rows):
        raise foreign(path, TOOL, "a line has other figures")
    found = [_line(row[0], row[3], scale, row[4], path) for row in rows[1:]]
    return [line for line in found if line is not None]


def _factor(lines: Sequence[_Line], path: Path) -> float:
    """Returns bus bandwidth x time / size, the same on every line; raises `InputError`."""
    known = [x for x in lines if x.bus_bytes_per_s >= LEAST_BUS]
    if not known:
        rule = "are all too small to check their unit"
        raise mistake("busbw", "", rule, "Measure larger messages", file=str(path))
    factors = [x.bus_bytes_per_s * x.time_s / x.message_bytes for x in known]
    middle = median(factors)
    if max(factors) / min(factors) > (1 + CLOSE) ** 2 or not 0.4 < middle < 2.1:
        rule = f"is {middle:.3g} times size over time, which no operation gives: a unit is wrong"
        raise mistake("busbw", "", rule, "Give bytes, microseconds and GB/s", file=str(path))
    return middle


def _operation(text: str, wanted: Wanted, factor: float, size: int | None, path: Path) -> Operation:
    named = NAME.search(text)
    if wanted.operation is not None:
        return wanted.operation
    if named is not None:
        return OPERATIONS[named[1]]
    known = _candidates(text, factor, size)
    if len(known) == 1:
        return known[0]
    rule = "is needed: the output does not name it, and several have such a bus bandwidth"
    raise mistake("--operation", "", rule, "Give it, as in --operation all_gather", file=str(path))


def _candidates(text: str, factor: float, size: int | None) -> list[Operation]:
    """Returns the operations with such a bus bandwidth; those that add name what they add by."""
    known: list[Operation] = list(OPERATIONS.values())
    if ADDS.search(text) is not None:
        known = ["all_reduce", "reduce_scatter"]
    if size is None:
        # Of the five only an all-reduce moves more than its buffer.
        return ["all_reduce"] if factor > 1 + CLOSE else known
    return [one for one in known if abs(factor / bus_fraction(one, size) - 1) < CLOSE]


def _group_size(operation: Operation, factor: float, path: Path) -> int:
    """Returns the number of ranks that gives such a factor."""
    for size in range(2, 1025):
        if abs(bus_fraction(operation, size) / factor - 1) < CLOSE / 10:
            return size
    rule = "does not tell how many ranks took part"
    raise mistake("(whole file)", "", rule, "Give the output as printed", file=str(path))


def _check_factor(operation: Operation, size: int, factor: float, path: Path) -> None:
    expected = bus_fraction(operation, size)
    if abs(factor / expected - 1) > CLOSE:
        rule = f"is {factor:.3g} times size over time; {operation} over {size} has {expected:.3g}"
        raise mistake("busbw", "", rule, "Correct --operation", file=str(path))


def _devices(hosts: Sequence[str], wanted: Wanted) -> tuple[int, ...]:
    """Returns the devices of ranks by their host: the first host's ranks stand on node 0."""
    if len(hosts) < 2:
        rule = "was measured by one rank, which sends nothing"
        raise mistake("(ranks)", "", rule, "Measure several devices")
    first = _first_devices(wanted)
    names = list(dict.fromkeys(hosts))
    if len(names) > len(first):
        rule = f"has {len(first)} nodes, but {len(names)} hosts were measured"
        raise mistake("--cluster", wanted.cluster.name, rule, "Name the cluster that was measured")
    seen = dict.fromkeys(names, 0)
    found = []
    for host in hosts:
        found.append(first[names.index(host)] + seen[host])
        seen[host] += 1
    if max(found) >= wanted.cluster.num_devices or len(set(found)) < len(found):
        rule = f"has nodes of fewer devices than the {max(seen.values())} ranks of a host"
        raise mistake("--cluster", wanted.cluster.name, rule, "Name the cluster that was measured")
    return tuple(found)


def _first_devices(wanted: Wanted) -> list[int]:
    sizes = [group.devices for group in wanted.cluster.nodes for _ in range(group.count)]
    return [sum(sizes[:i]) for i in range(len(sizes))]
