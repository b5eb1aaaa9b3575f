"""A picture of predicted against measured step time and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float

from apss_jax.calibration.measured import Comparison
from apss_jax.units import GIB

SIZE_INCHES: Final = (13.0, 6.5)
MARKERS: Final = "os^vD<>PX*"  # with twenty colours, enough for two hundred sources
POINT_AREA: Final = 10.0


def draw_accuracy(comparison: Comparison, path: Path) -> None:
    """Writes the picture; its format is that of the file's ending."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=SIZE_INCHES, layout="constrained")
    names = np.array([subject.run.source_name for subject in comparison.subjects], dtype=object)
    predicted = comparison.predicted
    _panel(left, "step time, s", names, comparison.step_time_s, predicted.step_time_s)
    memory_gib = comparison.memory_bytes / GIB, predicted.memory_bytes / GIB
    _panel(right, "peak memory, GiB", names, *memory_gib)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel(
    axes: Any,
    title: str,
    names: np.ndarray,
    measured: Float[np.ndarray, " batch"],
    predicted: Float[np.ndarray, " batch"],
) -> None:
    known = np.isfinite(measured)
    axes.set(xlabel=f"measured {title}", ylabel=f"predicted {title}", xscale="log", yscale="log")
    if not known.any():
        axes.set_title("nothing measured")
        return
    ends = [np.nanmin(measured), np.nanmax(measured)]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for index, name in enumerate(sorted(set(names[known].tolist()))):
        _points(axes, index, name, known & (names == name), measured, predicted)
    axes.legend(fontsize="x-small", markerscale=2, ncols=2)


def _points(
    axes: Any,
    index: int,
    name: str,
    chosen: Bool[np.ndarray, " batch"],
    measured: Float[np.ndarray, " batch"],
    predicted: Float[np.ndarray, " batch"],
) -> None:
    axes.scatter(
        measured[chosen],
        predicted[chosen],
        s=POINT_AREA,
        alpha=0.6,
        color=f"C{index}" if index < 10 else None,
        marker=MARKERS[index % len(MARKERS)],
        label=f"{name} ({int(chosen.sum())})",
    )
