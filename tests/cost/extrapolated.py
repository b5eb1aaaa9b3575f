"""The step of many plans of one schedule as the product runs it: folded where exact, else full."""

import jax
import numpy as np

from apss_jax.cost.op_table import ScheduleTable, pad_table
from apss_jax.cost.schedule import build_folded_table, build_table
from apss_jax.cost.simulate import Simulation, StageTimes, simulate

_simulate_batch = jax.jit(jax.vmap(simulate, in_axes=(None, 0)))

# Few sizes, so that few simulators are compiled; idle slots are never run.
_SMALLEST_SLOTS = 256


def simulate_extrapolated(
    name: str,
    num_stages: int,
    num_micro_batches: int,
    num_chunks: int,
    times: StageTimes,
) -> Simulation:
    """Returns the simulations of a batch of plans, as numpy arrays, equal to running every slot.

    All arrays of `times` have a leading batch axis; stages and chunks may be padded. The steady
    state is run once; plans that had not settled by then run again with the full table. Raises
    ValueError when the schedule cannot run with these sizes.
    """
    sizes = (name, num_stages, num_micro_batches, num_chunks)
    folded = build_folded_table(*sizes)
    result = _run(folded, times)
    unsettled = np.flatnonzero(~result.is_exact)
    if not unsettled.size:
        return result
    # Padded by repetition to a power of two, again for few sizes.
    padded = np.resize(unsettled, 1 << (unsettled.size - 1).bit_length())
    again = _run(build_table(*sizes), jax.tree.map(lambda values: values[padded], times))
    for values, corrected in zip(result, again, strict=True):
        values[unsettled] = corrected[: unsettled.size]
    return result


def _run(table: ScheduleTable, times: StageTimes) -> Simulation:
    num_slots = max(_SMALLEST_SLOTS, 1 << (table.num_slots - 1).bit_length())
    padded = pad_table(table, num_slots, times.tail_s.shape[-1])
    return jax.tree.map(np.array, _simulate_batch(padded, times))
