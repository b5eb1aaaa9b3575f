"""Cuts improved by following the schedule: a local search from cuts that another solver gave."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float64, Int64

from apss_jax.partitioning.flow import Flow
from apss_jax.partitioning.instance import require_cuts
from apss_jax.partitioning.pipeline import PipelineInstance, offsets_of

DEFAULT_BUDGET: Final = 100
"""Simulated steps for each row of cuts: 32 stages take 26 in the mean until no move helps."""


@dataclass(frozen=True)
class Refined:
    """The best cuts found from each row of cuts, and what they take."""

    cuts: Int64[np.ndarray, "batch cuts"]
    step_s: Float64[np.ndarray, "batch"]
    """The simulated step; inf where no cuts that fit were found."""
    evaluations: int
    """Steps that were simulated."""


def refined_cuts(
    instance: PipelineInstance,
    cuts: Int64[np.ndarray, "batch cuts"],
    *,
    budget: int = DEFAULT_BUDGET,
    seed: int = 0,
) -> Refined:
    """Returns cuts whose simulated step is no longer, for each row of cuts.

    `budget` is the number of steps that may be simulated for each row; the result depends on
    nothing else. Cuts that do not fit the memory are made to fit first, where single moves can.
    Raises ValueError for cuts that leave a piece empty and for a budget below one.
    """
    if budget < 1:
        raise ValueError(f"budget is {budget}; it must be positive")
    for row in cuts:
        require_cuts(row, instance.num_pieces, instance.num_layers)
    offsets = offsets_of(np.asarray(cuts, np.int64), instance.num_layers)
    found = improved(instance.flow(), offsets, budget, seed)
    return Refined(offsets[:, 1:-1] - 1, *found)


def improved(
    flow: Flow, offsets: Int64[np.ndarray, "batch offsets"], budget: int, seed: int
) -> tuple[Float64[np.ndarray, "batch"], int]:
    """Returns the step times of the offsets after improving them in place, and the evaluations.

    Each row begins with the same seed, so that it does not depend on the others.
    """
    from apss_jax.partitioning import flow_kernels, search_kernels

    found_s, used = np.empty(len(offsets)), 0
    arguments, room = flow.arguments(), flow.room()
    spare = np.empty(offsets.shape[1], np.int64)
    cursor = np.zeros(search_kernels.CURSOR_ENTRIES, np.int64)
    for row, own in enumerate(offsets):
        room[4][flow_kernels.NUM_PATHS] = 0
        cursor[search_kernels.LEFT], cursor[search_kernels.SEED] = budget, seed
        found_s[row] = search_kernels.improve(
            *(flow_kernels.step_s, *arguments, own, room, cursor, spare, True)
        )
        used += budget - int(cursor[search_kernels.LEFT])
    return found_s, used
