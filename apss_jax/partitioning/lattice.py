"""Devices and cuts chosen together: the optimum of the closed form over every order of devices."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Int64

from apss_jax.partitioning.joint import JointInstance

MAX_CELLS: Final = 6_000_000
"""Lattice nodes x types x offsets that are worked on; about 70 MB of tables."""

ALL_PASSES: Final = 1 << 62
"""More than any search takes."""

_NUM_BOXES = 1 << 10
_FRONT_ROWS = 64


@dataclass(frozen=True)
class Arrangement:
    """Which type each stage gets, where the layers are cut, and what that takes."""

    order: Int64[np.ndarray, "stages"]
    cuts: Int64[np.ndarray, "cuts"]
    objective_s: float
    """By whatever chose it: the closed form, or the simulated step."""


def solve_lattice(instance: JointInstance) -> Arrangement | None:
    """Returns the best order and cuts under the closed form; None if nothing fits the memory.

    Raises ValueError where the lattice is larger than `MAX_CELLS`: see `is_lattice_small`.
    """
    return next(iter(lattice_front(instance)), None)


def lattice_front(instance: JointInstance, *, passes: int = ALL_PASSES) -> list[Arrangement]:
    """Returns what the search for the optimum found on its way, the best first.

    Each is the best for some limit on the slowest stage, so that they differ in what they trade.
    With enough `passes`, the first is the optimum of the closed form; with any, there is one if
    any fits. Empty if nothing fits the memory. Raises ValueError as `solve_lattice` does.
    """
    from apss_jax.partitioning import lattice_kernels

    if not is_lattice_small(instance):
        raise ValueError(
            f"counts are {instance.counts.tolist()}; with {instance.num_layers} layers that is "
            f"more than {MAX_CELLS} cells"
        )
    stages, offsets = instance.num_stages, instance.num_layers + 1
    found = (
        np.zeros((_FRONT_ROWS, stages), np.int64),
        np.zeros((_FRONT_ROWS, stages + 1), np.int64),
        np.empty(_FRONT_ROWS),
        np.zeros(4, np.int64),
    )
    found[3][3] = passes
    joint, grid, num_boxes = joint_tables(instance), lattice_grid(instance), _NUM_BOXES
    while np.isnan(
        lattice_kernels.solve(joint, grid, lattice_room(instance, offsets, num_boxes), *found)
    ):
        num_boxes *= 2
    orders, ends, scores_s, counts = found
    rows = np.argsort(scores_s[: counts[2]], kind="stable")
    return [Arrangement(orders[r], ends[r, 1:-1] - 1, float(scores_s[r])) for r in rows]


def is_lattice_small(instance: JointInstance) -> bool:
    """Tells whether the lattice of an instance can be worked on."""
    return lattice_cells(instance) <= MAX_CELLS


def lattice_cells(instance: JointInstance) -> int:
    """Returns what a pass works on: nodes x types x offsets."""
    nodes = int(np.prod(_usable(instance) + 1))
    return nodes * instance.num_types * (instance.num_layers + 1)


def _usable(instance: JointInstance) -> Int64[np.ndarray, "device_types"]:
    return np.minimum(instance.counts, instance.num_stages)


def joint_tables(instance: JointInstance) -> tuple[Any, ...]:
    """Returns times, messages, what is held and what may be, in the order of `JOINT`."""
    times = instance.sums[0] + instance.sums[1]
    costs = np.stack([times, (instance.num_micro_batches - 1) * times, instance.sums[2]])
    return costs, 2.0 * instance.sent, instance.held, instance.allowed_bytes


def lattice_grid(instance: JointInstance) -> tuple[Any, ...]:
    """Returns the lattice: a node's number has the stages of each type as its digits."""
    counts = _usable(instance)
    strides = np.concatenate([[1], np.cumprod(counts + 1)[:-1]]).astype(np.int64)
    nodes = np.arange(np.prod(counts + 1))
    levels = (nodes[:, None] // strides % (counts + 1)).sum(axis=1)
    sizes = np.array([instance.num_stages, instance.num_micro_batches], np.int64)
    return counts, instance.node_stages, strides, levels, sizes


def lattice_room(instance: JointInstance, offsets: int, num_boxes: int) -> tuple[Any, ...]:
    """Returns the arrays that the kernel works in, in the order of its `ROOM`."""
    from apss_jax.partitioning.kernels import BOX_COLUMNS

    nodes = int(np.prod(_usable(instance) + 1))
    cells = (nodes, instance.num_types, offsets)
    return (
        np.empty((2, nodes), np.int64),
        np.empty(cells),
        np.empty(cells, np.int16),
        np.empty(cells, np.int8),
        np.empty((1, offsets)),
        np.empty((2, offsets), np.int64),
        np.empty((num_boxes, BOX_COLUMNS)),
        np.empty(2),
    )
