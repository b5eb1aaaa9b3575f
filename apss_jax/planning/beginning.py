"""The part of a search that needs no JAX: the loaded question, and the layouts worth costing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from apss_jax.planning.aside import begun_aside
from apss_jax.planning.candidates import Candidates
from apss_jax.planning.clock import Clock
from apss_jax.planning.enumeration import Pins
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.shortlist import shortlist
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import mistake
from apss_jax.schema.model import Model
from apss_jax.schema.stack import Stack

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
    model: Model | str,
    cluster: ClusterProfile | str,
    *,
    global_batch: int,
    seq_len: int | None = None,
    precision: str | None = None,
    stack: Stack | str | None = None,
    solver: str = "dpsn",
    pins: Mapping[str, Sequence[object]] | None = None,
    top: int = 5,
    aside: bool = False,
) -> Begun:
    """Returns a search that has begun, its layouts being looked at aside; raises `InputError`."""
    clock = Clock()
    inputs = gather_inputs(
        model,
        cluster,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        stack=stack,
    )
    if solver not in SOLVERS:
        raise mistake("--solver", solver, f"must be one of {', '.join(SOLVERS)}", "Choose one")
    if top < 1:
        raise mistake("--top", top, "must be at least 1", "Ask for one plan or more")
    clock.lap("load")
    wanted = pins or {}

    def chosen() -> Candidates:
        return shortlist(inputs, wanted, use_policy=True)

    return Begun(inputs, solver, wanted, top, clock, begun_aside(chosen) if aside else chosen)
