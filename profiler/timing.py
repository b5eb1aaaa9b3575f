"""How long a call takes: warmed up, waited for, repeated, with its spread.

The time of a call ends when its results are there, not when it was handed to the device. What is
timed runs as often as it is called: repetition is in Python, never in a loop inside the compiled
program, from which the compiler would lift whatever does not change.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from profiler.budget import ClockFn

Call = Callable[[], Any]
"""Runs once what is timed and returns its results, which may still be in the making."""

Statistic = Literal["median", "least"]

SHORT_SAMPLE_S: Final = 5e-3  # a sample of short calls lasts this long, so that a clock reads it
MOST_CALLS: Final = 200
FEWEST_REPEATS: Final = 3  # also of long calls


@dataclass(frozen=True)
class Samples:
    """Seconds of one call each, in order."""

    times_s: tuple[float, ...]
    statistic: Statistic

    @property
    def time_s(self) -> float:
        """Returns the figure that stands for all of them."""
        return min(self.times_s) if self.statistic == "least" else statistics.median(self.times_s)

    @property
    def spread_fraction(self) -> float | None:
        """Returns the interquartile range over the median; None of fewer than four samples."""
        if len(self.times_s) < 4:
            return None
        low, middle, high = statistics.quantiles(self.times_s, n=4)
        return (high - low) / middle if middle > 0 else None


@dataclass(frozen=True)
class Stopwatch:
    """How to time: how often, on which clock, and which of the samples counts.

    On devices of their own a median leaves rare disturbances out. Where the host computes, others
    disturb most samples, and only ever upwards: the least is closest to the machine alone.
    """

    repeats: int = 11
    warm_ups: int = 2
    statistic: Statistic = "median"
    runs_in_order: bool = True  # the device finishes calls in the order in which it got them
    clock: ClockFn = time.perf_counter

    def time(self, call: Call, *, most_s: float = float("inf")) -> Samples:
        """Returns samples of a call; fewer repeats where all of them would take over `most_s`."""
        once_s = self._warmed(call)
        calls = self._calls_per_sample(once_s)
        affordable = int(most_s / max(once_s * calls, 1e-9)) if most_s < float("inf") else 10**9
        repeats = max(min(FEWEST_REPEATS, self.repeats), min(self.repeats, affordable))
        times_s = tuple(self._sample_s(call, calls) for _ in range(repeats))
        return Samples(times_s, self.statistic)

    def _warmed(self, call: Call) -> float:
        once_s = 0.0
        for _ in range(max(1, self.warm_ups)):  # the first one compiles, loads, allocates
            once_s = self._sample_s(call, 1)
        return once_s

    def _calls_per_sample(self, once_s: float) -> int:
        # Calls that may overtake each other are waited for one by one.
        if not self.runs_in_order or once_s >= SHORT_SAMPLE_S:
            return 1
        return max(1, min(MOST_CALLS, round(SHORT_SAMPLE_S / max(once_s, 1e-9))))

    def _sample_s(self, call: Call, calls: int) -> float:
        start_s = self.clock()
        result = call()
        for _ in range(calls - 1):
            result = call()  # lets go of the result before: its memory is free again
        _wait_for(result)
        return (self.clock() - start_s) / calls


def _wait_for(result: Any) -> None:
    import jax

    for leaf in jax.tree.leaves(result):
        leaf.block_until_ready()
