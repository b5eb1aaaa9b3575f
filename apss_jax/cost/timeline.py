"""When each op of one plan runs: what a Gantt chart or a trace draws."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.slots import (
    Span,
    StageTimes,
    State,
    initial_state,
    make_slots,
    run_slot,
    without_unsent,
)


class Timeline(NamedTuple):
    """Start and end of the op in each cell of a table; equal in idle cells."""

    start_s: Float[np.ndarray, "slots stages"]
    end_s: Float[np.ndarray, "slots stages"]


def timeline(table: ScheduleTable, times: StageTimes) -> Timeline:
    """Returns when the ops of one plan start and end.

    Raises ValueError for a table that stands for repeated rows: not all its ops are written out.
    """
    if table.num_repeats:
        raise ValueError("a timeline needs a full table; this one leaves repeated rows out")
    lanes = jax.tree.map(lambda values: jnp.asarray(values)[..., None], times)
    return Timeline(*(np.asarray(values)[..., 0] for values in _spans(table, lanes)))


@jax.jit
def _spans(table: ScheduleTable, times: StageTimes) -> Span:
    times = without_unsent(table, times)
    slots = make_slots(table, times)

    def run(state: State, slot: jax.Array) -> tuple[State, Span]:
        return run_slot(slots, slot, state)

    return lax.scan(run, initial_state(table, times), jnp.arange(table.kind.shape[0]))[1]
