"""Latency and bandwidth from samples of times over message sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float
from scipy.optimize import least_squares

from apss_jax.schema.link_measurements import LinkFit, LinkSample, Operation

# Residuals of the logarithm beyond this count in proportion, not squared: a sample taken while
# something else ran is an outlier.
OUTLIER: Final = 0.1
LEAST_S: Final = 1e-12  # keeps logarithms finite
# Short messages count less, down to this: a network's buffers swallow some whole, and there are
# more sizes that tell the latency than sizes that tell the bandwidth.
LEAST_WEIGHT: Final = 0.2

Samples = Float[np.ndarray, " samples"]


@dataclass(frozen=True)
class Line:
    """time = latency_s + bytes / bytes_per_s."""

    latency_s: float
    bytes_per_s: float
    error_fraction: float  # median relative error over the samples


def bus_fraction(operation: Operation, group_size: int) -> float:
    """Returns which multiple of a message's size crosses the slowest link of a group.

    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    once = (group_size - 1) / group_size
    if operation == "all_reduce":
        return 2 * once
    return 1.0 if operation in ("send", "exchange") else once


def fit_line(message_bytes: Samples, times_s: Samples) -> Line:
    """Returns latency and rate; both are positive, and outliers count little.

    Relative errors are minimised: a plain line through times from microseconds to seconds is
    decided by the longest, and its latency is often negative.
    """
    if len(set(message_bytes.tolist())) < 2:
        raise ValueError("a latency and a bandwidth need samples of two sizes")
    order = np.argsort(message_bytes, kind="stable")
    size, time = message_bytes[order], times_s[order]
    weight = np.maximum(LEAST_WEIGHT, np.sqrt(size / size[-1]))

    def residuals(logs: Float[np.ndarray, " 2"]) -> Samples:
        return np.log(np.exp(logs[0]) + np.exp(logs[1]) * size) - np.log(time)

    def weighted(logs: Float[np.ndarray, " 2"]) -> Samples:
        return weight * residuals(logs)

    starts = _starts(size, time)
    found = min(
        (least_squares(weighted, s, loss="soft_l1", f_scale=OUTLIER) for s in starts),
        key=lambda result: float(result.cost),
    )
    latency_s, s_per_byte = np.exp(found.x)
    error = np.abs(np.expm1(residuals(found.x)))
    return Line(float(latency_s), float(1 / s_per_byte), float(np.median(error)))


def _starts(size: Samples, time: Samples) -> list[Float[np.ndarray, " 2"]]:
    """Returns two guesses: the largest sample is all bandwidth, or half latency."""
    s_per_byte = max(time[-1], LEAST_S) / size[-1]
    latency_s = max(time[0] - size[0] * s_per_byte, 0.1 * time[0])
    return [np.log([latency_s, s_per_byte]), np.log([0.5 * time[0], 0.5 * s_per_byte])]


def link_fit(
    operation: Operation, group_size: int, samples: Sequence[LinkSample], *, fastest: bool = False
) -> LinkFit | None:
    """Returns the fit of one operation's samples, or None where they have fewer than two sizes.

    `fastest` takes the fastest of the repeats instead of their median: on a machine that other work
    disturbs, it is the one that the link itself decided.
    """
    if len({sample.message_bytes for sample in samples}) < 2:
        return None
    factor = bus_fraction(operation, group_size)
    crossing = np.array([factor * sample.message_bytes for sample in samples])
    times = np.array([s.fastest_s if fastest else s.median_s for s in samples])
    line = fit_line(crossing, times)
    return LinkFit(
        latency_s=line.latency_s,
        bus_bytes_per_s=line.bytes_per_s,
        error_fraction=line.error_fraction,
    )


def bus_rates(
    operation: Operation, group_size: int, samples: Sequence[LinkSample]
) -> dict[int, float]:
    """Returns the bus bandwidth of each message size, in bytes per second, from median times."""
    factor = bus_fraction(operation, group_size)
    return {s.message_bytes: factor * s.message_bytes / s.median_s for s in samples}
