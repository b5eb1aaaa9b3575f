"""Pictures of a profile: bandwidth over message size, layer time over micro-batch, pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from apss_jax.schema.cluster import ClusterProfile
from apss_jax.units import GB, MS
from profiler.fit import bus_rates

WIDTH_INCHES: Final = 8.0
HEIGHT_INCHES: Final = 5.0


def draw_profile(profile: ClusterProfile, folder: Path) -> list[Path]:
    """Returns the files that were written; a picture without data is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        "bandwidth.png": draw_bandwidth if profile.link_measurements else None,
        "layers.png": draw_layers if profile.measurements else None,
        "pairs.png": draw_pairs if profile.pair_rates else None,
    }
    written = []
    for name, draw in pictures.items():
        if draw is not None:
            written.append(_drawn(profile, draw, folder / name))
    return written


def _drawn(profile: ClusterProfile, draw: Any, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
    FigureCanvasAgg(figure)
    draw(profile, figure.subplots())
    figure.savefig(path, metadata={"Software": None})  # the same profile, the same bytes
    return path


def draw_bandwidth(profile: ClusterProfile, axes: Any) -> None:
    """Draws bus bandwidth over message size, a line for each measured operation and link."""
    for measured in profile.link_measurements:
        if not measured.samples:
            continue
        rates = bus_rates(measured.operation, len(measured.devices), measured.samples)
        at_once = f" x{measured.concurrent_groups}" if measured.concurrent_groups > 1 else ""
        label = f"{measured.link or ''} {measured.operation} n={len(measured.devices)}{at_once}"
        axes.plot(list(rates), [rate / GB for rate in rates.values()], marker=".", label=label)
    axes.set(xscale="log", yscale="log", xlabel="message [bytes]", ylabel="bus bandwidth [GB/s]")
    axes.legend(fontsize="x-small")


def draw_layers(profile: ClusterProfile, axes: Any) -> None:
    """Draws the time of both passes over the micro-batch, a line for each shape and length."""
    lines: dict[str, dict[int, float]] = {}
    for row in profile.measurements:
        if row.recompute == "none" and row.backward_s is not None:
            label = f"{row.device_type} {row.shape} s={row.seq_len} t={row.tensor_parallel}"
            lines.setdefault(label, {})[row.micro_batch] = row.forward_s + row.backward_s
    for label, times_s in lines.items():
        sizes = sorted(times_s)
        axes.plot(sizes, [times_s[size] / MS for size in sizes], marker=".", label=label)
    axes.set(
        xscale="log", yscale="log", xlabel="micro-batch", ylabel="forward and backward pass [ms]"
    )
    axes.legend(fontsize="xx-small")


def draw_pairs(profile: ClusterProfile, axes: Any) -> None:
    """Draws what each device reached when it alone sent to each other one."""
    count = profile.num_devices
    rates = np.full((count, count), np.nan)
    for pair in profile.pair_rates:
        rates[pair.sender, pair.receiver] = pair.bytes_per_s / GB
    image = axes.imshow(rates, cmap="viridis")
    axes.set(xlabel="receiver", ylabel="sender", title="GB/s of each pair alone")
    axes.figure.colorbar(image, ax=axes)
