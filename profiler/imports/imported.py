"""What an importer returns, and what it is told: times of parts of a model, and rates of links."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
from jaxtyping import Float

from apss_jax.schema.cluster import ClusterProfile, Precision
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.link_measurements import LinkSample, Operation
from apss_jax.schema.model import Model

PartName = Literal["embedding", "layer", "head"]

MOST_TEXT_BYTES: Final = 16 * 2**20
MOST_FIGURE: Final = 1e15  # of seconds or bytes, above any
MOST_SPREAD: Final = 4.0  # slowest over fastest layer of one model
LIKE_A_LAYER: Final = 0.2  # a part whose figure is this close to a layer's may be one
MOST_ALIKE: Final = 1  # a head may take as long as a layer by chance
BACKWARD_SHARE: Final = 2.0  # of a forward pass, where a tool gives both passes as one time


@dataclass(frozen=True)
class PartTime:
    """What one micro-batch takes in one part of a model on one tensor-parallel rank."""

    part: PartName
    point: Point
    forward_s: float
    backward_s: float | None = None
    saved_bytes: int | None = None


@dataclass(frozen=True)
class LinkDatum:
    """What an operation reached over a group of devices, numbered as in the cluster."""

    operation: Operation
    devices: tuple[int, ...]
    bus_bytes_per_s: float | None = None  # None: the samples tell
    samples: tuple[LinkSample, ...] = ()


@dataclass(frozen=True)
class Imported:
    """Everything that was read."""

    parts: tuple[PartTime, ...] = ()
    links: tuple[LinkDatum, ...] = ()
    notes: tuple[str, ...] = ()
    precision: Precision | None = None  # where the files say it


@dataclass(frozen=True)
class Wanted:
    """What the person says beside the files."""

    cluster: ClusterProfile
    device_type: str
    model: Model | None = None
    seq_len: int | None = None
    precision: Precision | None = None
    operation: Operation | None = None
    link: str | None = None  # the key in the cluster's links; None: found from the devices

    @property
    def num_layers(self) -> int:
        """Returns the model's number of layers; raises `InputError` without a model."""
        if self.model is None or not self.model.layers:
            rule = "is needed: the files do not describe the model that was profiled"
            raise mistake("--model", "", rule, "Name it, or give its config.json")
        return sum(run.repeat for run in self.model.layers)

    def group(self, size: int, *, strided: bool = False) -> tuple[int, ...]:
        """Returns devices of a group: neighbours, or as far apart as the cluster allows."""
        total = self.cluster.num_devices
        if size < 2:
            rule = f"was measured over {size} devices, between which nothing is sent"
            raise mistake("(group)", size, rule, "Measure several devices")
        if size > total:
            rule = f"has {total} devices, but a group of {size} was measured"
            raise mistake(
                "--cluster", self.cluster.name, rule, "Name the cluster that was measured"
            )
        return tuple(range(0, total, total // size))[:size] if strided else tuple(range(size))


ReadFn = Callable[[Sequence[Path], Wanted], Imported]
"""Reads the files of one tool; raises `InputError`."""


@dataclass(frozen=True)
class Split:
    """One figure for each part of a model."""

    embedding: float
    layer: float
    head: float

    def scaled(self, factor: float) -> Split:
        """Returns all three times a factor."""
        return Split(factor * self.embedding, factor * self.layer, factor * self.head)


def split_parts(values: Sequence[float], num_layers: int, place: str) -> Split:
    """Returns embedding, mean layer and head of figures in model order; raises `InputError`."""
    return split_at(values, layer_span(values, num_layers, place))


def split_at(values: Sequence[float], span: slice) -> Split:
    """Returns what stands before the layers, their mean, and what follows them."""
    known = np.asarray(values, float)
    before, layers, after = known[: span.start], known[span], known[span.stop :]
    return Split(float(before.sum()), float(layers.mean()), float(after.sum()))


def layer_span(values: Sequence[float], num_layers: int, place: str) -> slice:
    """Returns where the layers stand among a model's parts; raises `InputError`.

    Tools count parts beside the layers differently. The layers are the stretch of `num_layers`
    entries that differ least from each other; what stands before belongs to the embedding, what
    follows to the head.
    """
    known = np.asarray(values, float)
    if not ((known >= 0) & (known < MOST_FIGURE)).all():
        raise _other_model("hold a figure that is no time and no size", place)
    if len(known) < num_layers:
        raise _other_model(f"are {len(known)}, the model has {num_layers} layers", place)
    starts = range(len(known) - num_layers + 1)
    ratios = [_spread(known[start : start + num_layers]) for start in starts]
    start = int(np.argmin(ratios))
    if ratios[start] > MOST_SPREAD:
        rule = f"differ {ratios[start]:.0f} times: no stretch of {num_layers} is alike"
        raise _other_model(rule, place)
    span = slice(start, start + num_layers)
    if not known[span].any():
        raise _other_model("take no time", place)
    around = np.delete(known, np.r_[span])
    alike = np.count_nonzero(np.abs(around / known[span].mean() - 1) < LIKE_A_LAYER)
    if alike > MOST_ALIKE:
        rule = f"are {num_layers + alike} alike, the model has {num_layers} layers"
        raise _other_model(rule, place)
    return span


def _other_model(rule: str, place: str) -> InputError:
    return mistake("(layers)", "", rule, "Name the model that was profiled", file=place)


def _spread(values: Float[np.ndarray, " layers"]) -> float:
    return float(values.max() / max(values.min(), 1e-12))


@dataclass(frozen=True)
class Point:
    """Where times were measured."""

    tensor_parallel: int
    micro_batch: int
    place: str  # the file, and where in it
    comm_included: bool = False
    seq_len: int | None = None


def part_times(
    point: Point, forward_s: Split, backward_s: Split | None = None, saved: Split | None = None
) -> list[PartTime]:
    """Returns the times of the parts that took any at a point."""
    found = []
    for part in get_args(PartName):
        forward = getattr(forward_s, part)
        backward = getattr(backward_s, part) if backward_s is not None else 0.0
        kept = round(getattr(saved, part)) if saved is not None else None
        if forward > 0:
            found.append(PartTime(part, point, forward, backward or None, kept))
    return found


def both_passes(total_s: Split) -> tuple[Split, Split]:
    """Returns forward and backward of times that contain both."""
    forward = 1 / (1 + BACKWARD_SHARE)
    return total_s.scaled(forward), total_s.scaled(1 - forward)


def numbers_in_name(path: Path, pattern: str, form: str) -> tuple[int, ...]:
    """Returns the whole numbers that a file's name holds; raises `InputError`."""
    match = re.search(pattern, path.name)
    if match is None:
        remedy = "Keep the names that the tool gave its files"
        raise mistake("(file name)", path.name, f"is not like {form}", remedy, file=str(path))
    return tuple(int(number) for number in match.groups())


def read_text(path: Path) -> str:
    """Returns a text file; raises `InputError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_TEXT_BYTES + 1)
        if len(content) > MOST_TEXT_BYTES:
            raise mistake("(file)", "", "is too large", "Name another file", file=str(path))
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _foreign(path, "is not text") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise mistake("(path)", str(path), reason, "Check the path", file=str(path)) from None


def foreign(path: Path, tool: str, why: str) -> InputError:
    """Returns the error for a file that a tool did not write."""
    return _foreign(path, f"is no profile of {tool}: {why}")


def _foreign(path: Path, rule: str) -> InputError:
    return mistake("(whole file)", "", rule, "Name another file or format", file=str(path))
