"""From device work and host launches to the time of a pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from apss_jax.datasheet.grid import Grid
from apss_jax.datasheet.matmul import TypeTimes

LAUNCH_POWER = 6.0  # of the smooth maximum of device and host time, unless a stack says another
BACKWARD_PRODUCTS = 2.0  # gradients of the input and of the weight

Values = Float[np.ndarray, "..."]
"""Figures of any shape."""


@dataclass(frozen=True)
class Work:
    """What the device computes in one pass each, and how long the host takes to launch it.

    `selective_s` is the part of the forward pass that selective recomputation repeats. `comm_*_s`
    are collectives between the kernels: counted elsewhere, but the host launches ahead of them too.
    """

    forward_s: TypeTimes
    backward_s: TypeTimes
    selective_s: TypeTimes
    host_forward_s: TypeTimes
    host_backward_s: TypeTimes
    comm_forward_s: TypeTimes | float = 0.0
    comm_backward_s: TypeTimes | float = 0.0
    launch_power: float = LAUNCH_POWER

    def plus(self, times: Times, repeat: int) -> Work:
        """Returns this work and that of layers beside it, `repeat` times over.

        Their launches are already in `times`, which therefore counts as device time.
        """
        forward_s = self.forward_s + repeat * times.forward_s
        backward_s = self.backward_s + repeat * (times.backward_s + times.recompute_s)
        return Work(
            forward_s=forward_s,
            backward_s=backward_s,
            selective_s=self.selective_s,
            host_forward_s=self.host_forward_s,
            host_backward_s=self.host_backward_s,
            launch_power=self.launch_power,
        )


@dataclass(frozen=True)
class Times:
    """Compute of one pass each; the backward pass without what recomputation repeats."""

    forward_s: TypeTimes
    backward_s: TypeTimes
    recompute_s: TypeTimes


def times_of(work: Work, grid: Grid, *, repeats_forward: bool) -> Times:
    """Returns the times of a unit; the ends of a model are never recomputed."""
    power = work.launch_power
    forward_s = _beside_host(work.forward_s, work.comm_forward_s, work.host_forward_s, power)
    repeated_s = grid.recomputes_all * forward_s + grid.recomputes_scores * work.selective_s
    return Times(
        forward_s=forward_s,
        backward_s=_beside_host(work.backward_s, work.comm_backward_s, work.host_backward_s, power),
        recompute_s=repeated_s if repeats_forward else np.zeros_like(forward_s),
    )


def _beside_host(
    device_s: TypeTimes, comm_s: TypeTimes | float, host_s: TypeTimes, power: float
) -> TypeTimes:
    """Returns what a pass takes beside its collectives; never less than the device's own time."""
    return smooth_maximum(device_s + comm_s, host_s, power) - comm_s


def smooth_maximum(one: Values, other: Values, power: float = LAUNCH_POWER) -> Values:
    """Returns a little more than the larger of two times, which overlap but for their ends.

    Two equal times give 2^(1 / power) of one.
    """
    larger = np.maximum(one, other)
    # Relative to the larger, or a power of a nanosecond would leave the range of floats.
    share = np.minimum(one, other) / np.where(larger > 0, larger, 1.0)
    return larger * (1.0 + share**power) ** (1.0 / power)


def other_part(total: Values, one: Values) -> Values:
    """Returns what makes `smooth_maximum` of it and `one` the total; 0 where `one` reaches it."""
    share = np.minimum(one / np.where(total > 0, total, 1.0), 1.0)
    return total * (1.0 - share**LAUNCH_POWER) ** (1.0 / LAUNCH_POWER)
