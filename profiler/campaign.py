"""Measures points in order for as long as there is time, and hands on what it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from apss_jax.schema.cluster import LayerMeasurement
from profiler.budget import Budget
from profiler.meter import Meter, PointFailed
from profiler.pace import Pace
from profiler.points import Key, Point
from profiler.progress import ProgressFn, no_progress

ROUND_S: Final = 20.0  # processes of a run meet this often; longer silence would look like a hang


@dataclass
class Campaign:
    """The points of one device type, and how far their measuring has come.

    `round` goes on where the last one stopped; `is_done` says that nothing more fits or is left.
    """

    meter: Meter
    points: tuple[Point, ...]
    budget: Budget
    pace: Pace
    progress: ProgressFn = no_progress
    rows: list[LayerMeasurement] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # by point, in words
    skipped_for_time: int = 0
    is_done: bool = False
    _next: int = 0
    _too_big: list[Point] = field(default_factory=list)

    @staticmethod
    def of(
        meter: Meter,
        points: Iterable[Point],
        budget: Budget,
        *,
        calls: int,
        known: frozenset[Key] = frozenset(),
        progress: ProgressFn = no_progress,
    ) -> Campaign:
        """Returns the campaign over the points that no file has yet."""
        left = tuple(point for point in points if point.key not in known)
        return Campaign(meter, left, budget, Pace(calls), progress)

    def round(self, longest_s: float = ROUND_S) -> list[LayerMeasurement]:
        """Returns new measurements: of one point at least, and of more for a while."""
        start_s, before = self.budget.spent_s, len(self.rows)
        while self._next < len(self.points):
            point = self.points[self._next]
            self._next += 1
            self._try(point)
            if self.budget.spent_s - start_s >= longest_s:
                break
        self.is_done = self._next >= len(self.points)
        return self.rows[before:]

    def notes(self) -> list[str]:
        """Returns in words what was not measured."""
        said = [f"not measured: {point}: {why}" for point, why in self.failures.items()]
        if self.skipped_for_time:
            said.append(
                f"{self.skipped_for_time} of {len(self.points)} points were left out for time; "
                "a run with --resume measures more"
            )
        return said

    def _try(self, point: Point) -> None:
        if any(self._is_larger(point, small) for small in self._too_big):
            return
        if not self.budget.allows(self.pace.expected_s(point)):
            self.skipped_for_time += 1
            return
        self._show(point)
        start_s = self.budget.spent_s
        try:
            row = self.meter.measure(point)
        except PointFailed as failure:
            self.failures[str(point)] = str(failure)
            if failure.too_big:
                self._too_big.append(point)
            return
        self.pace.learn(point, row, self.budget.spent_s - start_s - self.meter.once_s)
        self.rows.append(row)

    def _is_larger(self, point: Point, other: Point) -> bool:
        """Returns whether a point needs at least the memory that another one lacked."""
        return (
            point.subject == other.subject
            and point.recompute == other.recompute
            and point.precision == other.precision
            and point.tensor_parallel <= other.tensor_parallel
            and point.micro_batch >= other.micro_batch
            and point.seq_len >= other.seq_len
        )

    def _show(self, point: Point) -> None:
        ahead = self.points[self._next - 1 :]
        # A sum over all points for each of them would grow with their square.
        expected_s = len(ahead) * self.pace.expected_s(point)
        left_s = min(self.budget.left_s, expected_s)
        done = self.budget.spent_s / max(self.budget.spent_s + left_s, 1e-9)
        self.progress(str(point), done, left_s)
