"""The best partition there is under the closed-form objective, or the proof that none fits.

Reference for every other partitioner: nothing scores below it on the same instance. The method is
the epsilon-constraint search that `kernels` describes; it is imported, and numba with it, at the
first call, so that importing this module is cheap.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from apss_jax.partitioning.instance import MEMORY_SLACK_FRACTION, PartitionInstance

# What the tables of one call of the kernels may take: enough problems to make the call cheap.
_CHUNK_BYTES = 1 << 22
# Most searches open a few dozen boxes; one that needs more is done again with twice as many.
_NUM_BOXES = 1 << 10
# A layer that needs more than this share of a stage's memory does not fit it, however much more.
_SHARE_CEILING = 2.0


@dataclass(frozen=True)
class Partition:
    """A partition and what it costs."""

    cuts: Int64[np.ndarray, "cuts"]
    """0-based index of the last layer before each cut, ascending."""
    objective_s: float
    """The closed-form objective."""


def solve_exact(instance: PartitionInstance) -> Partition | None:
    """Returns the best partition; None if no partition fits the memory."""
    return solve_exact_many([instance])[0]


def solve_exact_many(instances: Sequence[PartitionInstance]) -> list[Partition | None]:
    """Returns the best partition of each instance, None where no partition fits the memory.

    Instances of one size are solved together, whatever their order.
    """
    places: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, instance in enumerate(instances):
        places[instance.layer_cost_s.shape].append(place)
    found: list[Partition | None] = [None] * len(instances)
    for shape, group in places.items():
        size = _chunk_size(*shape)
        for chunk in (group[i : i + size] for i in range(0, len(group), size)):
            cuts, objective_s = _solve(_tables([instances[place] for place in chunk]))
            for row, place in enumerate(chunk):
                if objective_s[row] < np.inf:
                    found[place] = Partition(cuts[row], float(objective_s[row]))
    return found


def exact_cuts(
    layer_cost_s: Float[np.ndarray, "batch layers"],
    boundary_cost_s: Float[np.ndarray, "batch boundaries cuts"],
    num_micro_batches: int,
) -> Int64[np.ndarray, "batch cuts"]:
    """Returns the best cuts on equal stages, under time alone: memory is unlimited."""
    batch, layers = layer_cost_s.shape
    stages = boundary_cost_s.shape[2] + 1
    cuts = np.empty((batch, stages - 1), np.int64)
    size = _chunk_size(stages, layers)
    for rows in (slice(i, i + size) for i in range(0, batch, size)):
        rounds = np.full(len(layer_cost_s[rows]), num_micro_batches - 1)
        tables = _time_tables(layer_cost_s[rows, None], boundary_cost_s[rows], rounds)
        cuts[rows] = _solve(tables)[0]
    return cuts


def _chunk_size(stages: int, layers: int) -> int:
    from apss_jax.partitioning import kernels

    return max(1, _CHUNK_BYTES // (8 * kernels.NUM_TABLES * stages * (layers + 1)))


def _tables(instances: list[PartitionInstance]) -> Any:
    """Returns what the kernels work on: [batch, tables, stages, offsets]."""
    from apss_jax.partitioning import kernels

    tables = _time_tables(
        np.stack([i.layer_cost_s for i in instances]),
        np.stack([i.boundary_cost_s for i in instances]),
        np.array([i.num_micro_batches - 1 for i in instances]),
    )
    for table, instance in zip(tables, instances, strict=True):
        table[kernels.GRADIENT, :, 1:] = instance.gradient_cost_s
        table[kernels.MEMORY, :, 1:] = _memory_shares(instance)
    for kind in (kernels.GRADIENT, kernels.MEMORY):
        kernels.sum_up(tables, kind)
    return tables


def _time_tables(
    layer_cost_s: Float64[np.ndarray, "batch _ layers"],
    boundary_cost_s: Float64[np.ndarray, "batch boundaries cuts"],
    rounds: Any,
) -> Any:
    """Returns the tables with those of gradients and memory left at zero."""
    from apss_jax.partitioning import kernels

    batch, layers = layer_cost_s.shape[0], layer_cost_s.shape[2]
    stages = boundary_cost_s.shape[2] + 1
    tables = np.zeros((batch, kernels.NUM_TABLES, stages, layers + 1))
    tables[:, kernels.TIME, :, 1:] = layer_cost_s
    kernels.sum_up(tables, kernels.TIME)
    tables[:, kernels.ENDING, :-1, 1:-1] = boundary_cost_s.swapaxes(1, 2)
    tables[:, kernels.ROUNDS] = tables[:, kernels.TIME] * rounds[:, None, None]
    return tables


def _memory_shares(instance: PartitionInstance) -> Float64[np.ndarray, "stages layers"]:
    """Returns each layer's share of what a stage may hold; a stage fits if they sum to one."""
    allowed_bytes = instance.capacity_bytes[:, None] * (1 + MEMORY_SLACK_FRACTION)
    shares = np.zeros_like(instance.memory_bytes)
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(instance.memory_bytes, allowed_bytes, out=shares, where=instance.memory_bytes > 0)
    return np.minimum(shares, _SHARE_CEILING)


def _solve(tables: Any) -> tuple[Any, Any]:
    """Returns the cuts and the objective of each problem; the objective is inf if nothing fits."""
    from apss_jax.partitioning import kernels

    batch, _, stages, offsets = tables.shape
    cuts, objective_s = np.empty((batch, stages - 1), np.int64), np.empty(batch)
    work = kernels.workspace(stages, offsets, _NUM_BOXES)
    for problem in range(batch):
        objective_s[problem] = kernels.solve(tables[problem], *work, cuts[problem])
    num_boxes = _NUM_BOXES
    while np.isnan(objective_s).any():
        num_boxes *= 2
        work = kernels.workspace(stages, offsets, num_boxes)
        for problem in np.flatnonzero(np.isnan(objective_s)).tolist():
            objective_s[problem] = kernels.solve(tables[problem], *work, cuts[problem])
    return cuts, objective_s
