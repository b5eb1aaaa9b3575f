"""Samples of one operation over growing messages, taken in step by all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

from apss_jax.schema.link_measurements import (
    COLLECTIVES,
    TRANSFERS,
    LinkMeasurement,
    LinkSample,
    Operation,
)
from profiler.collectives import (
    WARM_UPS,
    calls_per_repeat,
    counted_bytes,
    make_program,
    owns_member,
    time_repeats,
)
from profiler.context import MeasuringContext
from profiler.fit import link_fit
from profiler.processes import gather_figures

MEETING_BYTES: Final = 4
FEWEST_REPEATS: Final = 3
PROGRAM_S: Final = 0.2  # to compile a program and to connect its members, once per size

# Measured of essential links also when the time is up: all latency, nearly all bandwidth.
ESSENTIAL_BYTES: Final = (2**10, 2**20)
# Between CPU devices longer messages measure how fast new memory pages come, not a link.
MOST_CPU_BYTES: Final = 2**24

Numbers = tuple[int, ...]

_MEETING: Final[dict[Operation, Operation]] = {
    **dict.fromkeys(COLLECTIVES, "all_reduce"),
    **dict.fromkeys(TRANSFERS, "exchange"),
}


@dataclass(frozen=True)
class Ladder:
    """Which message sizes are tried, in order, and when it is enough."""

    message_bytes: tuple[int, ...]
    longest_call_s: float  # a size that would take longer is not tried
    longest_size_s: float  # repeats of one size take about this long at most


# Latency and bandwidth of a link: from 1 KiB to where time is all bandwidth.
FULL: Final = Ladder(tuple(2**n for n in (10, 14, 17, 20, 22, 24, 26, 28)), 0.5, 1.5)
# The rate of a pair alone.
QUICK: Final = Ladder(tuple(2**n for n in (16, 20, 23, 26)), 0.12, 0.4)


@dataclass(frozen=True)
class Sampler:
    """Takes samples for a run; every process calls it with the same arguments."""

    context: MeasuringContext

    def measure(
        self,
        operation: Operation,
        groups: Sequence[Numbers],
        *,
        ladder: Ladder = FULL,
        essential: bool = False,
        known: Sequence[LinkSample] = (),
    ) -> LinkMeasurement:
        """Returns samples and fit of an operation over groups of devices, all of them at once.

        Without time left there are no samples, unless they are essential: then those of two sizes
        that tell latency and bandwidth apart. Sizes that are `known` are not measured again.
        """
        samples = self._samples(operation, groups, ladder, known, essential=essential)
        return LinkMeasurement(
            operation=operation,
            devices=tuple(groups[0]),
            concurrent_groups=len(groups),
            samples=tuple(samples),
            fit=link_fit(operation, len(groups[0]), samples, fastest=self.takes_fastest),
        )

    @property
    def takes_fastest(self) -> bool:
        """Returns whether the fastest of the repeats counts, not their median."""
        return self.context.stopwatch.statistic == "least"

    def _samples(
        self,
        operation: Operation,
        groups: Sequence[Numbers],
        ladder: Ladder,
        known: Sequence[LinkSample],
        *,
        essential: bool,
    ) -> list[LinkSample]:
        found: list[LinkSample] = []
        before = {sample.message_bytes: sample for sample in known}
        left_s = self._agreed_left_s()
        for size in self._sizes(ladder):
            counted = counted_bytes(operation, len(groups[0]), size)
            if counted in before:
                found.append(before[counted])
                continue
            expected_s = _expected_s(found, size)
            needed_s = PROGRAM_S + (WARM_UPS + FEWEST_REPEATS) * expected_s
            has_time = expected_s <= ladder.longest_call_s and needed_s <= left_s
            if not has_time and not (essential and size in ESSENTIAL_BYTES):
                continue
            repeats = _repeats(self.context.stopwatch.repeats, expected_s, ladder.longest_size_s)
            sample, left_s = self._sample(operation, groups, size, repeats)
            found.append(sample)
        return found

    def _sizes(self, ladder: Ladder) -> list[int]:
        is_cpu = self.context.devices[0].platform == "cpu"
        return [size for size in ladder.message_bytes if not is_cpu or size <= MOST_CPU_BYTES]

    def _sample(
        self, operation: Operation, groups: Sequence[Numbers], size: int, repeats: int
    ) -> tuple[LinkSample, float]:
        """Returns one sample and how much time process 0 has left after it."""
        devices = [[self.context.devices[n] for n in group] for group in groups]
        own_s = np.full(repeats, np.nan)
        message_bytes = 0
        if owns_member(devices):
            meet = make_program(_MEETING[operation], devices, MEETING_BYTES)
            program = make_program(operation, devices, size)
            message_bytes = program.message_bytes
            own_s = time_repeats(program, meet, repeats, calls_per_repeat())
        left_s = min(self.context.budget.left_s, 1e9)
        rows = gather_figures([message_bytes, left_s, *own_s])
        times_s = slowest_member(rows[:, 2:])
        sample = LinkSample(
            message_bytes=int(rows[:, 0].max()),
            median_s=float(np.median(times_s)),
            fastest_s=float(times_s.min()),
            repeats=repeats,
        )
        return sample, float(rows[0, 1])

    def _agreed_left_s(self) -> float:
        return float(gather_figures([min(self.context.budget.left_s, 1e9)])[0, 0])


def slowest_member(times_s: Float[np.ndarray, "ranks samples"]) -> Float[np.ndarray, " samples"]:
    """Returns for each repeat the time of the slowest process; NaN marks those without a member.

    An operation is over when its last member has its result: a sender is done before the receiver.
    """
    return np.nanmax(times_s, axis=0)


def _expected_s(found: Sequence[LinkSample], message_bytes: int) -> float:
    """Returns what a call on the next size would take if all of the last one were bandwidth."""
    if not found:
        return 0.0
    return found[-1].fastest_s * message_bytes / found[-1].message_bytes


def _repeats(wanted: int, expected_s: float, longest_s: float) -> int:
    affordable = int(longest_s / max(expected_s, 1e-9))
    return max(FEWEST_REPEATS, min(wanted, affordable))
