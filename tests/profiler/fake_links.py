"""Links that are known: a sampler that answers from a table of rates instead of measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from apss_jax.schema.link_measurements import LinkMeasurement, LinkSample, Operation
from profiler.budget import Budget
from profiler.context import LinkStart, MeasuringContext
from profiler.fit import bus_fraction, link_fit
from profiler.sampling import ESSENTIAL_BYTES, FULL, Ladder, Numbers
from profiler.survey import Survey
from profiler.timing import Stopwatch

LATENCY_S = 1e-4
RateFn = Callable[[int, int], float]
"""Returns the bytes per second from one device to another, alone."""
Question = tuple[Operation, tuple[Numbers, ...]]
"""An operation and its groups."""


@dataclass(frozen=True)
class FakeSampler:
    """Times follow `rate`; groups that leave a node at once divide `node_rate`, all `switch_rate`.

    `asked` gets what was measured, questions that are already answered left out; `budget_calls` of
    them have time.
    """

    context: MeasuringContext
    rate: RateFn
    node_rate: float = float("inf")
    switch_rate: float = float("inf")
    takes_fastest: bool = False
    has_time: bool = True
    budget_calls: float = float("inf")
    asked: list[Question] = field(default_factory=list)

    def measure(
        self,
        operation: Operation,
        groups: Sequence[Numbers],
        *,
        ladder: Ladder = FULL,
        essential: bool = False,
        known: Sequence[LinkSample] = (),
    ) -> LinkMeasurement:
        """Returns samples of a ring at its slowest step."""
        needed = ESSENTIAL_BYTES if essential else ()
        has_time = self.has_time and len(self.asked) < self.budget_calls
        old = {sample.message_bytes: sample for sample in known}
        sizes = [s for s in ladder.message_bytes if has_time or s in needed or s in old]
        if set(sizes) - old.keys():
            self.asked.append((operation, tuple(groups)))
        samples = [old.get(size) or self._sample(operation, groups, size) for size in sizes]
        return LinkMeasurement(
            operation=operation,
            devices=groups[0],
            concurrent_groups=len(groups),
            samples=tuple(samples),
            fit=link_fit(operation, len(groups[0]), samples),
        )

    def _sample(self, operation: Operation, groups: Sequence[Numbers], size: int) -> LinkSample:
        time_s = max(self._time_s(operation, group, groups, size) for group in groups)
        return LinkSample(message_bytes=size, median_s=time_s, fastest_s=time_s, repeats=3)

    def _time_s(
        self, operation: Operation, group: Numbers, groups: Sequence[Numbers], size: int
    ) -> float:
        steps = [(group[0], group[1])]
        if operation != "send":
            steps = list(zip(group, (*group[1:], group[0]), strict=True))
        rate = min(self._step_rate(a, b, groups) for a, b in steps)
        calls = 2 if operation == "all_reduce" else 1
        return calls * LATENCY_S + bus_fraction(operation, len(group)) * size / rate

    def _step_rate(self, a: int, b: int, groups: Sequence[Numbers]) -> float:
        node = self.context.node_of_device
        if node[a] == node[b]:
            return self.rate(a, b)
        leaving = sum(node[a] in {node[member] for member in group} for group in groups)
        return min(self.rate(a, b), self.node_rate / leaving, self.switch_rate / len(groups))


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


def survey_of(
    node_sizes: Sequence[int], rate: RateFn, *, start: LinkStart | None = None, **options: Any
) -> Survey:
    """Returns a survey whose sampler answers from rates."""
    context = context_of(node_sizes)
    survey = Survey.of(context, start)
    survey.sampler = FakeSampler(context, rate, **options)
    return survey
