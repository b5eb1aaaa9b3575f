"""Which points are measured, and in which order: the most informative first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape, Precision
from apss_jax.schema.layers import Layer, MoeMlp
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Recompute

Key = tuple[str, int, int, int, str, str]
"""What tells a point apart in a file: shape, tensor degree, micro-batch, length, precision,
recomputation."""

# How late a shape comes: a step needs whole layers, ends and updates; halves of layers only tell
# where its time goes.
WHOLE_RANK: Final = 0
PART_RANK: Final = 3


@dataclass(frozen=True)
class Subject:
    """A shape to measure under its name in the file; a low rank comes early."""

    name: str
    shape: LayerShape
    rank: int
    is_whole_layer: bool = False


@dataclass(frozen=True)
class Axes:
    """The values to measure along each axis, in the order of a file, all ascending."""

    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    seq_lens: tuple[int, ...] = (1024, 2048, 4096)
    tensor_degrees: tuple[int, ...] = (1, 2, 4, 8)
    precisions: tuple[Precision, ...] = ("bf16",)
    recomputes: tuple[Recompute, ...] = ("none", "full", "selective")


CPU_AXES: Final = Axes((1, 2, 4), (128, 256, 512), (1, 2, 4), ("fp32",))


@dataclass(frozen=True)
class Point:
    """One thing to measure."""

    subject: Subject
    tensor_parallel: int = 1
    micro_batch: int = 1
    seq_len: int = 1
    precision: Precision = "bf16"
    recompute: Recompute = "none"

    @property
    def key(self) -> Key:
        """Returns what tells the point apart in a file."""
        return (
            self.subject.name,
            self.tensor_parallel,
            self.micro_batch,
            self.seq_len,
            self.precision,
            self.recompute,
        )

    @property
    def tokens(self) -> int:
        """Returns the tokens of a micro-batch."""
        return self.micro_batch * self.seq_len

    def __str__(self) -> str:
        size = f"b{self.micro_batch} s{self.seq_len} t{self.tensor_parallel}"
        repeats = "" if self.recompute == "none" else f" recompute {self.recompute}"
        return f"{self.subject.name} {size} {self.precision}{repeats}"


def measured_keys(profile: ClusterProfile, device_type: str) -> set[Key]:
    """Returns the points that a file has of a device type."""
    return {key_of(row) for row in profile.measurements if row.device_type == device_type}


def key_of(row: LayerMeasurement) -> Key:
    """Returns what tells a measured point apart from the others of its device type."""
    return (
        row.shape,
        row.tensor_parallel,
        row.micro_batch,
        row.seq_len,
        row.precision,
        row.recompute,
    )


def subjects_of(model: Model) -> list[Subject]:
    """Returns every distinct part of a model: layers, ends, the optimizer, halves of layers.

    A model that is a table of measured rows has none.
    """
    if model.hidden_size is None or model.embedding is None:
        return []
    hidden = model.hidden_size
    layers = list(dict.fromkeys(run.layer for run in model.layers))
    found = [
        Subject(
            _numbered(f"{model.name} layer", i, layers),
            _layer_shape(hidden, layer),
            WHOLE_RANK,
            is_whole_layer=True,
        )
        for i, layer in enumerate(layers)
    ]
    vocab = model.embedding.vocab_size
    head = LayerShape(part="head", hidden_size=hidden, vocab_size=vocab)
    embedding = LayerShape(part="embedding", hidden_size=hidden, vocab_size=vocab)
    parameters = sum(w.num_parameters for w in layers[0].weights(hidden) if not w.is_expert)
    optimizer = LayerShape(part="optimizer", hidden_size=hidden, num_parameters=parameters)
    found.append(Subject(f"{model.name} head", head, WHOLE_RANK))
    found.append(Subject(f"{model.name} embedding", embedding, WHOLE_RANK))
    found.append(Subject(f"{model.name} optimizer", optimizer, WHOLE_RANK))
    return found + _halves(model.name, hidden, layers)


def _halves(name: str, hidden: int, layers: Sequence[Layer]) -> list[Subject]:
    """Returns the mixer and the feed-forward part of each layer, each with one norm."""
    halves: dict[Layer, str] = {}
    for layer in layers:
        if layer.mixer is not None:
            one = Layer(mixer=layer.mixer, norm=layer.norm, num_norms=1)
            halves.setdefault(one, layer.mixer.kind.replace("_", " "))
        if layer.feed_forward is not None:
            one = Layer(feed_forward=layer.feed_forward, norm=layer.norm, num_norms=1)
            halves.setdefault(one, "experts" if _has_experts(one) else "mlp")
    counts: dict[str, int] = {}
    found = []
    for half, kind in halves.items():
        counts[kind] = counts.get(kind, 0) + 1
        title = f"{name} {kind}" + (f" {counts[kind]}" if counts[kind] > 1 else "")
        found.append(Subject(title, _layer_shape(hidden, half), PART_RANK))
    return found


def _has_experts(layer: Layer) -> bool:
    return isinstance(layer.feed_forward, MoeMlp)


def _numbered(name: str, index: int, alike: Sequence[Layer]) -> str:
    return name if len(alike) == 1 else f"{name} {index + 1}"


def _layer_shape(hidden_size: int, layer: Layer) -> LayerShape:
    return LayerShape(part="layer", hidden_size=hidden_size, layer=layer)


def planned(subjects: Iterable[Subject], axes: Axes) -> list[Point]:
    """Returns every point of a grid, the most informative first.

    Along each axis the ends come first and then what halves the widest gap, because a time between
    two measured ones is interpolated. A point's place is the sum of its places along the axes.
    """
    ranked = [
        (rank, number, point)
        for number, (rank, point) in enumerate(
            pair for subject in subjects for pair in _points(subject, axes)
        )
    ]
    return [point for _, _, point in sorted(ranked, key=lambda each: each[:2])]


def _points(subject: Subject, axes: Axes) -> list[tuple[int, Point]]:
    if subject.shape.part == "optimizer":
        return [(subject.rank, Point(subject, precision=p)) for p in axes.precisions]
    lines = [
        halving(axes.micro_batches),
        halving(axes.seq_lens),
        halving(axes.tensor_degrees),
        halving(axes.precisions),
        # Ends of a model are not recomputed, and halves of a layer only with the layer.
        halving(axes.recomputes if subject.is_whole_layer else ("none",)),
    ]
    found = []
    for places in itertools.product(*(enumerate(line) for line in lines)):
        ranks, values = zip(*places, strict=True)
        batch, length, degree, precision, recompute = values
        point = Point(subject, degree, batch, length, precision, recompute)
        found.append((subject.rank + sum(ranks), point))
    return found


def halving(values: Sequence[object]) -> list[object]:
    """Returns values in the order first, last, middle, and then the middles of what is between."""
    if len(values) <= 2:
        return list(values)
    order, gaps = [0, len(values) - 1], [(0, len(values) - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle > low:
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return [values[i] for i in order]


def at_most_tokens(points: Iterable[Point], most_tokens: int) -> list[Point]:
    """Returns the points whose micro-batch is not larger than a device is meant to hold."""
    return [point for point in points if point.tokens <= most_tokens]


def axes_of(
    models: Sequence[Model],
    *,
    on_cpu: bool,
    precision: Sequence[Precision],
    recompute: Sequence[Recompute],
    seq_len: Sequence[int],
    micro_batch: Sequence[int],
    tp: Sequence[int],
) -> Axes:
    """Returns the grid that flags ask for; what they leave open is that of the kind of device."""
    usual = CPU_AXES if on_cpu else Axes()
    longest = max((model.max_seq_len or usual.seq_lens[-1] for model in models), default=0)
    lengths = tuple(length for length in usual.seq_lens if length <= longest) or (longest,)
    return Axes(
        micro_batches=tuple(micro_batch) or usual.micro_batches,
        seq_lens=tuple(seq_len) or lengths,
        tensor_degrees=tuple(tp) or usual.tensor_degrees,
        precisions=tuple(precision) or usual.precisions,
        recomputes=tuple(recompute) or usual.recomputes,
    )
