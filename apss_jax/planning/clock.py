"""Wall time of a search, by phase."""

from __future__ import annotations

from time import perf_counter
from typing import Final

PHASES: Final = ("load", "candidates", "partition", "cost", "refine", "explain")
TELL_EVERY_S: Final = 1.0  # how long a person waits without a word


class Clock:
    """Wall time by phase."""

    def __init__(self) -> None:
        self._start = self._last = self._told = perf_counter()
        self._spent = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str) -> bool:
        """Adds the time since the last lap to a phase; tells once a second that one has passed."""
        now = perf_counter()
        self._spent[phase] += now - self._last
        self._last = now
        is_due = now - self._told >= TELL_EVERY_S
        self._told = now if is_due else self._told
        return is_due

    def elapsed(self) -> dict[str, float]:
        """Returns seconds by phase, and in total."""
        return {"total": perf_counter() - self._start, **self._spent}
