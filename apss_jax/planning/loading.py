"""Reads compiled code before it is called: programs in a thread, as Python has no part in most."""

from contextlib import suppress
from functools import cache
from importlib import import_module
from threading import Thread
from typing import Final

from apss_jax.cost.batched import kept_step_costs

KERNELS: Final = ("apss_jax.partitioning.kernels", "apss_jax.cost.table_kernels")
PROGRAMS: Final = 8  # a search calls about five


@cache
def load_compiled() -> None:
    """Reads, once, the kernels that every search calls; begins to read the programs used last."""
    Thread(target=_load_programs, name="load-programs").start()
    for name in KERNELS:
        import_module(name)


def _load_programs() -> None:
    # What cannot be read is told to whoever calls it.
    with suppress(Exception):
        kept_step_costs.load_latest(PROGRAMS)
