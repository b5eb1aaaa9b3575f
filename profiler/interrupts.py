"""Ctrl-C that is not lost: one that the interpreter swallows counts at the next look.

Python drops an exception that is raised inside a finalizer or a callback of its garbage collector,
and JAX registers such a callback: there a `KeyboardInterrupt` would end nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from profiler.progress import ProgressFn


@contextmanager
def heeded(progress: ProgressFn) -> Iterator[ProgressFn]:
    """Yields the progress function that raises `KeyboardInterrupt` if one was asked for before."""
    asked: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    def look(text: str, done_fraction: float, left_s: float) -> None:
        if asked:
            raise KeyboardInterrupt
        progress(text, done_fraction, left_s)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield look
    finally:
        signal.signal(signal.SIGINT, before)
