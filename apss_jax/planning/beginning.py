"""The part of a search that needs no JAX: the layouts of a loaded question worth costing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from apss_jax.planning.aside import begun_aside
from apss_jax.planning.candidates import Candidates
from apss_jax.planning.clock import Clock
from apss_jax.planning.enumeration import Pins
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.shortlist import shortlist
from apss_jax.schema.errors import mistake

# The network is asked where plans are refined: what leads is found by the exact solver.
SOLVERS = ("dpsn", "exact", "balanced", "uniform")


@dataclass(frozen=True, eq=False)
class Begun:
    """A question, and what gives the layouts worth costing."""

    inputs: Inputs
    solver: str
    pins: Pins
    top: int
    clock: Clock
    chosen: Callable[[], Candidates]
    use_policy: bool = True


def begin_search(
    inputs: Inputs,
    clock: Clock,
    *,
    solver: str = "dpsn",
    pins: Pins | None = None,
    top: int = 5,
    aside: bool = False,
) -> Begun:
    """Returns a search that has begun, its layouts being looked at aside; raises `InputError`."""
    if solver not in SOLVERS:
        raise mistake("--solver", solver, f"must be one of {', '.join(SOLVERS)}", "Choose one")
    if top < 1:
        raise mistake("--top", top, "must be at least 1", "Ask for one plan or more")
    clock.lap("load")
    wanted = pins or {}

    def chosen() -> Candidates:
        return shortlist(inputs, wanted, use_policy=True)

    return Begun(inputs, solver, wanted, top, clock, begun_aside(chosen) if aside else chosen)
