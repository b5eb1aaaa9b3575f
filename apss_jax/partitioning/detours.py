"""What a choice of devices costs if all others are the best: detours from the joint optimum."""

from typing import Final

import numpy as np
from jaxtyping import Float64

from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import (
    Arrangement,
    joint_tables,
    lattice_front,
    lattice_grid,
    lattice_room,
)

SLACK: Final = 1.03
"""How long the slowest stage may be, relative to a plan that has it about as short as any."""


def detours(instance: JointInstance) -> Float64[np.ndarray, "_ device_types"]:
    """Returns how much longer than the best of all, relatively, plans through each node take.

    As `plans_through_s`: zero along the best of them, inf where none goes.
    """
    through_s = plans_through_s(instance)
    best_s = through_s.min()
    return through_s / best_s - 1 if best_s < np.inf else through_s


def plans_through_s(instance: JointInstance) -> Float64[np.ndarray, "_ device_types"]:
    """Returns the least closed form of the plans through each node of the lattice.

    A node says how many stages of each type the pipeline has used up to some stage, in the order of
    `lattice_grid`; the column is the type of that stage. Plans are those whose slowest stage keeps
    within a limit, which is taken as reached, so that figures bound the least from above. inf where
    no such plan goes, which is everywhere if nothing fits the memory. Raises ValueError as
    `lattice_front` does.
    """
    from apss_jax.partitioning import detour_kernels

    joint, grid = joint_tables(instance), lattice_grid(instance)
    through_s = np.full((len(grid[3]), instance.num_types), np.inf)
    if front := lattice_front(instance, passes=1):
        room = lattice_room(instance, instance.num_layers + 1, 1)
        room[-1][:] = SLACK * _loads_s(instance, front[0])
        work = (np.empty(2, np.int64), np.empty_like(room[1]))
        detour_kernels.lower(joint, grid, room, *work, through_s)
    return through_s


def _loads_s(instance: JointInstance, best: Arrangement) -> Float64[np.ndarray, "_"]:
    """Returns the most that a stage of a plan takes in further micro-batches, and in its tail."""
    offsets = np.concatenate([[0], best.cuts + 1, [instance.num_layers]])
    costs = joint_tables(instance)[0][1:]
    loads_s = costs[:, best.order, offsets[1:]] - costs[:, best.order, offsets[:-1]]
    return loads_s.max(axis=1)
