"""Imitated devices: times from a roofline over the library's figures, every one marked as mocked.

For tests of the profiler and of what reads its files on machines without a GPU; no prediction.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from apss_jax.schema.cluster import ClusterProfile, DeviceType, LayerMeasurement, Link, Precision
from apss_jax.schema.layers import Attention, LatentAttention
from apss_jax.schema.link_measurements import LinkFit, LinkMeasurement, LinkSample, Operation
from apss_jax.schema.machine import DeviceState
from apss_jax.schema.model import Model
from profiler.meter import PointFailed, expected_flops
from profiler.points import Axes, Point, planned, subjects_of

LAUNCH_S: Final = 5e-6
NOISE_FRACTION: Final = 0.02  # most that a mocked time is off its roofline
# Values read and written per token and hidden value, forward, beside the products.
TRAFFIC_PASSES: Final = 12.0
UPDATE_BYTES: Final = 34.0  # per parameter of an optimizer's update
MESSAGE_BYTES: Final = tuple(2**n for n in (10, 14, 18, 22, 26, 28))
REPEATS: Final = 11
MOCK_NOTE: Final = "mocked: no figure of this profile was measured"

SleepFn = Callable[[float], None]
"""Lets time pass on the clock of a test."""


@dataclass
class RooflineMeter:
    """Imitates a device; `pass_time` is told how long a measurement would have taken."""

    device_type: str
    device: DeviceType
    pass_time: SleepFn = lambda seconds: None
    compile_s: float = 0.0
    state: DeviceState | None = None
    most_tokens: int | None = None  # more do not fit
    once_s: float = 0.0

    def measure(self, point: Point) -> LayerMeasurement:
        """Returns a mocked measurement; raises `PointFailed` as a real meter does."""
        peak = self.device.peak_flops_per_s.get(point.precision)
        if peak is None:
            raise PointFailed(f"precision {point.precision}")
        if self.most_tokens is not None and point.tokens > self.most_tokens:
            raise PointFailed("it does not fit in memory", too_big=True)
        forward_s = self._forward_s(point, peak) * _noise(point)
        is_update = point.subject.shape.part == "optimizer"
        repeated = {"none": 0.0, "selective": 0.1, "full": 1.0}[point.recompute]
        backward_s = None if is_update else (2.0 + repeated) * forward_s
        self.pass_time(self.compile_s + REPEATS * (forward_s + (backward_s or 0.0)))
        flops = expected_flops(point)
        return LayerMeasurement(
            shape=point.subject.name,
            device_type=self.device_type,
            tensor_parallel=point.tensor_parallel,
            micro_batch=point.micro_batch,
            seq_len=point.seq_len,
            precision=point.precision,
            recompute=point.recompute,
            forward_s=forward_s,
            backward_s=backward_s,
            repeats=REPEATS,
            spread_fraction=NOISE_FRACTION,
            forward_flops=flops or None,
            backward_flops=2.0 * flops or None,
            state=self.state,
            provenance="mocked",
        )

    def _forward_s(self, point: Point, peak: float) -> float:
        rates, shape = self.device.rates, point.subject.shape
        bytes_per_s = self.device.memory_bytes_per_s * rates.memory_fraction
        if shape.num_parameters is not None:
            return LAUNCH_S + UPDATE_BYTES * shape.num_parameters / bytes_per_s
        flops = expected_flops(point) + _score_flops(point)
        moved = 2.0 * TRAFFIC_PASSES * point.tokens * shape.hidden_size
        return LAUNCH_S + flops / (peak * rates.gemm_fraction) + moved / bytes_per_s


def _score_flops(point: Point) -> float:
    layer = point.subject.shape.layer
    mixer = layer.mixer if layer is not None else None
    if not isinstance(mixer, Attention | LatentAttention):
        return 0.0
    return 2.0 * point.tokens * point.seq_len * mixer.score_width / point.tensor_parallel


def _noise(point: Point) -> float:
    """Returns a factor near 1 that is the same for the same point, everywhere."""
    share = zlib.crc32(str(point.key).encode()) / 2**32
    return 1.0 + NOISE_FRACTION * (2.0 * share - 1.0)


def mocked_profile(
    cluster: ClusterProfile, model: Model, *, axes: Axes | None = None
) -> ClusterProfile:
    """Returns a cluster as if layers of a model and its links had been measured."""
    subjects = subjects_of(model)
    rows = [
        RooflineMeter(name, device).measure(point)
        for name, device in _types(cluster)
        for point in planned(subjects, axes or _axes(device, model))
    ]
    return cluster.model_copy(
        update={
            "source": "mocked by `python -m profiler mock`",
            "stack": "jax",
            "shapes": {subject.name: subject.shape for subject in subjects},
            "measurements": tuple(rows),
            "link_measurements": tuple(mocked_links(cluster)),
            "notes": (*cluster.notes, MOCK_NOTE),
        }
    )


def _types(cluster: ClusterProfile) -> list[tuple[str, DeviceType]]:
    return [(name, cluster.device_types[name]) for name in cluster.used_types]


def _axes(device: DeviceType, model: Model) -> Axes:
    wanted: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
    precision = next(p for p in wanted if p in device.peak_flops_per_s)
    usual = Axes(precisions=(precision,))
    longest = model.max_seq_len or usual.seq_lens[-1]
    lengths = tuple(length for length in usual.seq_lens if length <= longest) or (longest,)
    return replace(usual, seq_lens=lengths)


def mocked_links(cluster: ClusterProfile) -> list[LinkMeasurement]:
    """Returns mocked all-reduces inside each kind of node, and one between the first two nodes."""
    found, first = [], 0
    for group in cluster.nodes:
        inside = tuple(range(first, first + group.devices))
        if group.devices > 1:
            found.append(_mocked("all_reduce", group.intra_link, cluster, inside))
        first += group.count * group.devices
        if group.count > 1:
            across = (inside[0], inside[0] + group.devices)
            found.append(_mocked("send", group.network, cluster, across))
    return found


def _mocked(
    operation: Operation, name: str, cluster: ClusterProfile, devices: Sequence[int]
) -> LinkMeasurement:
    link: Link = cluster.links[name]
    count = len(devices)
    crossing = 2.0 * (count - 1) / count if operation == "all_reduce" else 1.0
    rate = link.bytes_per_s * link.reached_fraction
    samples = []
    for size in MESSAGE_BYTES:
        time_s = 2 * link.latency_s + crossing * size / rate
        samples.append(
            LinkSample(message_bytes=size, median_s=time_s, fastest_s=time_s, repeats=REPEATS)
        )
    return LinkMeasurement(
        operation=operation,
        link=name,
        devices=tuple(devices),
        samples=tuple(samples),
        fit=LinkFit(latency_s=2 * link.latency_s, bus_bytes_per_s=rate),
        provenance="mocked",
    )
