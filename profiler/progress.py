"""A bar with the time that is left, on stderr; plain lines where it is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 24
LINE_EVERY_S: Final = 10.0  # of plain lines: a log is read, not watched
MOST_TEXT: Final = 48

ProgressFn = Callable[[str, float, float], None]
"""Told what is measured next, the share that is done, and the seconds that are left."""


def no_progress(text: str, done_fraction: float, left_s: float) -> None:
    """Shows nothing."""


@dataclass
class Bar:
    """Shows how far a run has come. It is a `ProgressFn`."""

    is_terminal: bool
    _last_s: float = float("-inf")

    @staticmethod
    def on_stderr() -> Bar:
        """Returns the bar of this process."""
        return Bar(sys.stderr.isatty())

    def __call__(self, text: str, done_fraction: float, left_s: float) -> None:
        """Shows what is measured now."""
        line = bar_line(text, done_fraction, left_s)
        if self.is_terminal:
            sys.stderr.write(f"\r\x1b[2K{line}")
        elif time.monotonic() - self._last_s >= LINE_EVERY_S:
            self._last_s = time.monotonic()
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leaves the line of the bar."""
        if self.is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def bar_line(text: str, done_fraction: float, left_s: float) -> str:
    """Returns one line: a bar, the share that is done, the time left, what is measured."""
    done = min(max(done_fraction, 0.0), 1.0)
    bar = "#" * round(WIDTH * done)
    minutes, seconds = divmod(round(left_s), 60)
    left = f"{minutes}:{seconds:02d} left"
    return f"[{bar:.<{WIDTH}}] {done:4.0%}  {left}  {text[:MOST_TEXT]}"
