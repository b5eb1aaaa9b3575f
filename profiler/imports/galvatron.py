"""Profiles of Galvatron (github.com/PKU-DAIR/Hetu-Galvatron): JSON of times and of bandwidths.

`computation_profiling_*` holds milliseconds of one forward pass of models with different numbers of
layers: a layer takes the difference over that of the numbers. `allreduce_bandwidth_*` holds bus
bandwidths and `p2p_bandwidth_*` rates in GB/s, `sp_time_*` milliseconds over message sizes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from apss_jax.schema.cluster import Precision
from apss_jax.schema.document import read_json
from apss_jax.schema.errors import mistake
from apss_jax.schema.link_measurements import LinkSample, Operation
from profiler.imports.imported import (
    Imported,
    LinkDatum,
    PartTime,
    Point,
    Split,
    Wanted,
    foreign,
    part_times,
)

TOOL: Final = "Galvatron"
MS: Final = 1e-3
MEGABYTE: Final = 2**20
GIGABYTE: Final = 1e9
MODEL_TIME: Final = re.compile(r"layernum\[(\d{1,9})\]_bsz(\d{1,9})(?:_seq(\d{1,9}))?")
SEVERAL_KINDS: Final = re.compile(r"layernum\[\d+,")
REDUCTION: Final = re.compile(r"allreduce_size_(\d{1,9})_consec_([01])")
TRANSFER: Final = re.compile(r"pp_size_(\d{1,9})")
SIZED: Final = re.compile(r"(allreduce|all2all)_size_(\d{1,9})_(\d{1,9})MB_time")
KEYS: Final = (MODEL_TIME, REDUCTION, TRANSFER, SIZED)
SEQ_LEN: Final = re.compile(r"_seqlen(\d{1,9})")
FASTEST_BYTES_PER_S: Final = 2e12  # beyond it a figure is in another unit
IN_NAMES: Final[tuple[Precision, ...]] = ("bf16", "fp16", "fp32")
SIZED_OPERATIONS: Final[dict[str, Operation]] = {
    "allreduce": "all_reduce",
    "all2all": "all_to_all",
}


def read_galvatron(files: Sequence[Path], wanted: Wanted) -> Imported:
    """Returns layer times and link rates of all files; raises `InputError`."""
    parts: list[PartTime] = []
    links: list[LinkDatum] = []
    for path in files:
        data = _figures(path)
        if any(SEVERAL_KINDS.match(key) for key in data):
            raise foreign(path, TOOL, "a model of two kinds of layers cannot be told apart")
        parts += _layers(path, data)
        links += _links(path, data, wanted)
        if not any(pattern.fullmatch(key) for key in data for pattern in KEYS):
            raise foreign(path, TOOL, "it has neither model times nor bandwidths")
    precisions = {p for p in IN_NAMES for path in files if f"_{p}_" in path.name}
    precision = precisions.pop() if len(precisions) == 1 else None
    return Imported(tuple(parts), tuple(links), precision=precision)


def _figures(path: Path) -> dict[str, float]:
    data = read_json(path)
    if not isinstance(data, dict) or any(not _is_positive(value) for value in data.values()):
        raise foreign(path, TOOL, "it is no table of positive figures")
    return {key: float(value) for key, value in data.items()}


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")


def _layers(path: Path, data: Mapping[str, float]) -> list[PartTime]:
    """Returns the layer at each micro-batch and length at which two models were timed."""
    named = SEQ_LEN.search(path.name)
    in_name = int(named[1]) if named else None
    by_point: dict[tuple[int, int | None], dict[int, float]] = {}
    for key, time_ms in data.items():
        match = MODEL_TIME.fullmatch(key)
        if match is not None:
            length = int(match[3]) if match[3] else in_name
            by_point.setdefault((int(match[2]), length), {})[int(match[1])] = MS * time_ms
    found: list[PartTime] = []
    for (batch, length), times_s in sorted(by_point.items(), key=str):
        if len(times_s) > 1:
            point = Point(1, batch, str(path), seq_len=length)
            found += part_times(point, Split(0.0, _slope(path, times_s), 0.0))
    if by_point and not found:
        rule = "has models of one number of layers only: a layer's time is not in it"
        raise mistake("layernum", "", rule, "Name a file with two", file=str(path))
    return found


def _slope(path: Path, times_s: Mapping[int, float]) -> float:
    few, many = min(times_s), max(times_s)
    slope_s = (times_s[many] - times_s[few]) / (many - few)
    if slope_s <= 0:
        rule = f"takes no longer with {many} layers than with {few}"
        raise mistake("layernum", "", rule, "Measure again", file=str(path))
    return slope_s


def _links(path: Path, data: Mapping[str, float], wanted: Wanted) -> list[LinkDatum]:
    found = []
    sized: dict[tuple[str, int], list[LinkSample]] = {}
    for key, value in data.items():
        if match := REDUCTION.fullmatch(key):
            devices = wanted.group(int(match[1]), strided=match[2] == "0")
            found.append(LinkDatum("all_reduce", devices, _rate(path, key, value)))
        elif match := TRANSFER.fullmatch(key):
            found.append(LinkDatum("send", _ends(int(match[1]), wanted), _rate(path, key, value)))
        elif match := SIZED.fullmatch(key):
            sample = LinkSample(
                message_bytes=int(match[3]) * MEGABYTE, median_s=MS * value, fastest_s=MS * value
            )
            _rate(path, key, sample.message_bytes / sample.median_s / GIGABYTE)
            sized.setdefault((match[1], int(match[2])), []).append(sample)
    for (word, size), samples in sized.items():
        ordered = tuple(sorted(samples, key=lambda sample: sample.message_bytes))
        found.append(LinkDatum(SIZED_OPERATIONS[word], wanted.group(size), samples=ordered))
    return found


def _ends(num_stages: int, wanted: Wanted) -> tuple[int, ...]:
    """Returns two devices of neighbouring stages whose boundary is the slowest: between nodes."""
    each = wanted.cluster.num_devices // num_stages
    on_first_node = wanted.cluster.nodes[0].devices
    if wanted.cluster.num_devices == on_first_node:
        return 0, each
    return max(0, on_first_node - each), on_first_node


def _rate(path: Path, key: str, gigabytes_per_s: float) -> float:
    rate = GIGABYTE * gigabytes_per_s
    if not 1e6 < rate < FASTEST_BYTES_PER_S:
        rule = "is no rate of a link in GB/s: its unit is wrong"
        raise mistake(key, gigabytes_per_s, rule, "Give GB/s", file=str(path))
    return rate
