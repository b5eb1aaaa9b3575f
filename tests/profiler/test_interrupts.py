"""Ctrl-C ends a run, also where Python drops the exception."""

import os
import signal
from contextlib import suppress

import pytest

from profiler.interrupts import heeded
from profiler.progress import no_progress


def test_an_interrupt_that_was_swallowed_ends_the_run_at_the_next_look() -> None:
    """As when it falls into a callback of the garbage collector."""
    with heeded(no_progress) as look:
        look("first", 0.0, 1.0)
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            look("second", 0.5, 0.5)


def test_without_an_interrupt_progress_is_shown() -> None:
    """What is told goes on to the bar."""
    told: list[str] = []
    with heeded(lambda text, *_: told.append(text)) as look:
        look("first", 0.0, 1.0)
    assert told == ["first"]


def test_the_handler_of_before_is_put_back() -> None:
    """Other code of the process has its own way with Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    with heeded(no_progress):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
