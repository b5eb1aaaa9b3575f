"""How much time is left, and whether the next piece of work fits into it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

ClockFn = Callable[[], float]
"""Returns seconds of a clock that only goes forward."""


@dataclass(frozen=True)
class Budget:
    """A stretch of time that began at `start_s` on its clock; `limit_s` None means no limit."""

    start_s: float
    limit_s: float | None
    clock: ClockFn = time.monotonic

    @staticmethod
    def of_minutes(minutes: float | None, clock: ClockFn = time.monotonic) -> Budget:
        """Returns a budget that begins now."""
        return Budget(clock(), None if minutes is None else 60.0 * minutes, clock)

    @property
    def spent_s(self) -> float:
        """Returns how long it has run."""
        return self.clock() - self.start_s

    @property
    def left_s(self) -> float:
        """Returns what is left, at least 0; infinity without a limit."""
        if self.limit_s is None:
            return float("inf")
        return max(0.0, self.limit_s - self.spent_s)

    def allows(self, expected_s: float) -> bool:
        """Returns whether work that takes so long ends in time."""
        return expected_s < self.left_s

    def part(self, fraction: float) -> Budget:
        """Returns a budget that begins now and has a share of what is left."""
        limit_s = None if self.limit_s is None else fraction * self.left_s
        return Budget(self.clock(), limit_s, self.clock)
