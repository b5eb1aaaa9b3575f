"""Work in a copy of the process, while the process itself goes on.

Threads would not do: looking at millions of layouts and importing JAX both hold Python's lock.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

Found = TypeVar("Found")


def begun_aside(function: Callable[[], Found]) -> Callable[[], Found]:
    """Begins a function in a copy of this process; returns what waits for its result.

    Where a process cannot be copied safely or has one core, the function waits until it is asked
    for; so it does, once more, where it failed in the copy, and what is wrong is raised here.
    """
    if not _can_be_copied():
        return function
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    worker = context.Process(target=_send, args=(function, reader, writer), daemon=True)
    with warnings.catch_warnings():
        # Of the threads that Python 3.12 warns of, those of BLAS, a copy uses none.
        warnings.simplefilter("ignore", DeprecationWarning)
        worker.start()
    writer.close()

    def result() -> Found:
        try:
            found: Found = reader.recv()
        except EOFError:
            found = function()
        worker.join()
        return found

    return result


def _can_be_copied() -> bool:
    """Returns whether a copy finds all that this process has, and a core to run on."""
    is_alone = threading.active_count() == 1 and "jax" not in sys.modules
    return sys.platform == "linux" and is_alone and len(os.sched_getaffinity(0)) > 1


def _send(function: Callable[[], object], reader: Connection, writer: Connection) -> None:
    reader.close()  # so that nobody is left to read, and this ends, where the process itself ends
    try:
        writer.send(function())
    except BaseException:  # the process itself meets it again, or has been interrupted as well
        os._exit(1)
