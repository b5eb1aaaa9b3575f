"""Links that are known: a sampler that answers from a table of rates instead of measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from apss_jax.schema.link_measurements import LinkMeasurement, LinkSample, Operation
from profiler.budget import Budget
from profiler.context import MeasuringContext
from profiler.fit import bus_fraction, link_fit
from profiler.sampling import ESSENTIAL_BYTES, FULL, Ladder, Numbers
from profiler.survey import Survey
from profiler.timing import Stopwatch

LATENCY_S = 1e-4
RateFn = Callable[[int, int], float]
"""Returns the bytes per second from one device to another, alone."""


@dataclass(frozen=True)
class FakeSampler:
    """Times follow `rate`; devices of a node divide `node_rate` when they leave it at once."""

    context: MeasuringContext
    rate: RateFn
    node_rate: float = float("inf")
    takes_fastest: bool = False
    has_time: bool = True

    def measure(
        self,
        operation: Operation,
        groups: Sequence[Numbers],
        *,
        ladder: Ladder = FULL,
        essential: bool = False,
    ) -> LinkMeasurement:
        """Returns samples of a ring at its slowest step."""
        needed = ESSENTIAL_BYTES if essential else ()
        sizes = [s for s in ladder.message_bytes if self.has_time or s in needed]
        samples = [self._sample(operation, groups, size) for size in sizes]
        return LinkMeasurement(
            operation=operation,
            devices=groups[0],
            concurrent_groups=len(groups),
            samples=tuple(samples),
            fit=link_fit(operation, len(groups[0]), samples),
        )

    def _sample(self, operation: Operation, groups: Sequence[Numbers], size: int) -> LinkSample:
        time_s = max(self._time_s(operation, group, len(groups), size) for group in groups)
        return LinkSample(message_bytes=size, median_s=time_s, fastest_s=time_s, repeats=3)

    def _time_s(self, operation: Operation, group: Numbers, at_once: int, size: int) -> float:
        steps = [(group[0], group[1])]
        if operation != "send":
            steps = list(zip(group, (*group[1:], group[0]), strict=True))
        rate = min(self._step_rate(a, b, at_once) for a, b in steps)
        calls = 2 if operation == "all_reduce" else 1
        return calls * LATENCY_S + bus_fraction(operation, len(group)) * size / rate

    def _step_rate(self, a: int, b: int, at_once: int) -> float:
        node = self.context.node_of_device
        crosses = node[a] != node[b]
        return min(self.rate(a, b), self.node_rate / at_once if crosses else float("inf"))


def context_of(node_sizes: Sequence[int]) -> MeasuringContext:
    """Returns a run on nodes of so many devices, called n0, n1, ..."""
    node_of_device = np.repeat(np.arange(len(node_sizes)), node_sizes)
    return MeasuringContext(
        devices=tuple(SimpleNamespace(device_kind="fake") for _ in node_of_device),
        node_of_device=tuple(node_of_device.tolist()),
        stopwatch=Stopwatch(),
        budget=Budget.of_minutes(None),
        node_names=tuple(f"n{i}" for i in range(len(node_sizes))),
    )


def survey_of(node_sizes: Sequence[int], rate: RateFn, **options: object) -> Survey:
    """Returns a survey whose sampler answers from rates."""
    context = context_of(node_sizes)
    survey = Survey.of(context)
    survey.sampler = FakeSampler(context, rate, **options)  # type: ignore[arg-type, assignment]
    return survey
