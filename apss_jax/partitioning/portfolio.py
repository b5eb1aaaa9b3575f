"""Devices and cuts by the simulated step: many orders, each with the cuts that suit it best."""

from functools import lru_cache
from itertools import permutations
from math import factorial
from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int64

from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import (
    Arrangement,
    is_lattice_small,
    lattice_cells,
    lattice_front,
)

DEFAULT_BUDGET: Final = 1_000
"""Simulated steps: a third of a percent from the best known on up to 32 stages."""

MAX_ENUMERATED: Final = 1_000
"""Orders that are few enough to look at all of them."""

# What an order takes until it can be told whether it deserves more: exact cuts, a brief search.
_BRIEF_EVALUATIONS = 20
_ENUMERATED_SHARE = 0.5
# How many of the first orders get a long search of their cuts, and how long it is for a stage.
_NUM_LONG, _NUM_LONG_ENUMERATED = 4, 64
_LONG_EVALUATIONS = 40
# Cells of the lattice that are worked on in the time that simulating a step takes, or so.
_CELLS_PER_EVALUATION = 500
_NUM_BOXES = 1 << 10

Orders = Int64[np.ndarray, "batch stages"]


def arranged(
    instance: JointInstance,
    *,
    budget: int = DEFAULT_BUDGET,
    seed: int = 0,
    proposals: Orders | None = None,
) -> Arrangement | None:
    """Returns the order and cuts with the least simulated step found; None if nothing fits.

    `proposals` are orders to begin with, the most promising first, in place of the closed form's.

    `budget` is the number of steps that may be simulated, exact cuts of an order counted as four;
    the result depends on nothing else but the seed. Where orders are few, all are looked at.
    Raises ValueError for a budget below one.
    """
    if budget < 1:
        raise ValueError(f"budget is {budget}; it must be positive")
    orders, offsets = _first_orders(instance, budget, proposals)
    num_long = _NUM_LONG_ENUMERATED if is_enumerated(instance, budget) else _NUM_LONG
    long = min(_LONG_EVALUATIONS * instance.num_stages, max(budget // (2 * num_long), 1))
    plan = np.array([_BRIEF_EVALUATIONS, long, num_long, budget], np.int64)
    return _arranged(instance, orders, offsets, plan, seed)


def scored_orders(
    instance: JointInstance, orders: Orders, evaluations: int, seed: int = 0
) -> tuple[Float64[np.ndarray, "batch"], Int64[np.ndarray, "batch offsets"]]:
    """Returns the step of each order, inf where no cuts fit, and where its pieces begin and end.

    Cuts are the exact ones of the closed form, searched from there by some simulated steps.
    """
    from apss_jax.partitioning import portfolio_kernels

    flow = instance.flow(orders[0].copy())
    problem, schedule, _ = flow.arguments()
    devices = (instance.allowed_bytes, instance.node_stages, instance.counts)
    plan = np.array([evaluations, 0, 0, np.iinfo(np.int64).max // 2], np.int64)
    offsets = np.zeros((len(orders), instance.num_stages + 1), np.int64)
    scores_s = np.empty(len(orders))
    rooms = (flow.room(), _exact_room(instance), _own_room(instance, seed))
    starts = (np.ascontiguousarray(orders, np.int64), offsets, scores_s)
    portfolio_kernels.arrange(*_entries(), problem, schedule, devices, plan, rooms, starts)
    return scores_s, offsets


def _arranged(
    instance: JointInstance, orders: Orders, offsets: Any, plan: Any, seed: int
) -> Arrangement | None:
    from apss_jax.partitioning import portfolio_kernels

    flow = instance.flow(orders[0].copy())
    problem, schedule, _ = flow.arguments()
    devices = (instance.allowed_bytes, instance.node_stages, instance.counts)
    own = _own_room(instance, seed)
    rooms = (flow.room(), _exact_room(instance), own)
    starts = (orders, offsets, np.empty(len(orders)))
    step_s = portfolio_kernels.arrange(*_entries(), problem, schedule, devices, plan, rooms, starts)
    if not step_s < np.inf:
        return None
    return Arrangement(own[0][-1], own[1][-1, 1:-1] - 1, float(step_s))


def _first_orders(
    instance: JointInstance, budget: int, proposals: Int64[np.ndarray, "samples stages"] | None
) -> tuple[Orders, Any]:
    """Returns orders to begin with, and their offsets; 0 where those are still to be found."""
    blocks = block_orders(instance)
    if is_enumerated(instance, budget):
        orders = _all_orders(tuple(instance.counts.tolist()), instance.num_stages).copy()
    elif proposals is not None:
        orders = np.concatenate([proposals, blocks])
    else:
        orders = blocks
    offsets = np.zeros((len(orders), instance.num_stages + 1), np.int64)
    if orders is not blocks or not is_lattice_small(instance):
        return orders, offsets
    passes = _CELLS_PER_EVALUATION * budget // lattice_cells(instance)
    front = lattice_front(instance, passes=max(passes, 1))
    found = [np.concatenate([[0], one.cuts + 1, [instance.num_layers]]) for one in front]
    return (
        np.array([*(one.order for one in front), *blocks], np.int64),
        np.array([*found, *offsets], np.int64),
    )


def block_orders(instance: JointInstance) -> Orders:
    """Returns the orders in which the stages of each type stand together, one for each sequence."""
    found = {}
    for kinds in permutations(range(instance.num_types)):
        devices = np.repeat(kinds, instance.counts[list(kinds)])[: instance.num_stages]
        found[devices.tobytes()] = devices
    return np.array(list(found.values()), np.int64)


def is_enumerated(instance: JointInstance, budget: int) -> bool:
    """Tells whether a search of a budget looks at all orders."""
    count = num_orders(instance)
    return count <= min(MAX_ENUMERATED, _ENUMERATED_SHARE * budget / _BRIEF_EVALUATIONS)


def num_orders(instance: JointInstance) -> int:
    """Returns how many orders there are, equal devices not told apart."""
    ways = np.zeros(instance.num_stages + 1)
    ways[0] = 1.0
    for count in instance.counts.tolist():
        taken = [1 / factorial(n) for n in range(min(count, instance.num_stages) + 1)]
        ways = np.convolve(ways, taken)[: instance.num_stages + 1]
    return round(ways[-1] * factorial(instance.num_stages))


@lru_cache(maxsize=64)
def _all_orders(counts: tuple[int, ...], num_stages: int) -> Orders:
    """Returns every order, stage by stage from those of the stages before."""
    orders = np.zeros((1, 0), np.int64)
    for _ in range(num_stages):
        longer = []
        for kind, count in enumerate(counts):
            free = orders[(orders == kind).sum(axis=1) < count]
            longer.append(np.pad(free, ((0, 0), (0, 1)), constant_values=kind))
        orders = np.concatenate(longer)
    return orders


def _entries() -> tuple[Any, ...]:
    """Returns what the kernel calls, in the order of its `ENTRIES`."""
    from apss_jax.partitioning import flow_kernels, kernels, search_kernels

    return flow_kernels.step_s, search_kernels.improve, kernels.solve


def _own_room(instance: JointInstance, seed: int) -> tuple[Any, ...]:
    from apss_jax.partitioning import search_kernels

    stages = instance.num_stages
    cursor = np.zeros(search_kernels.CURSOR_ENTRIES, np.int64)
    cursor[search_kernels.SEED] = seed
    return (
        np.zeros((3, stages), np.int64),
        np.zeros((3, stages + 1), np.int64),
        np.zeros(instance.num_types, np.int64),
        np.zeros(stages + 1, np.int64),
        cursor,
        float(instance.blocking_fraction),
    )


def _exact_room(instance: JointInstance) -> tuple[Any, ...]:
    from apss_jax.partitioning import kernels

    stages, offsets = instance.num_stages, instance.num_layers + 1
    boxes, *others = kernels.workspace(stages, offsets, _NUM_BOXES)
    tables = np.empty((kernels.NUM_TABLES, stages, offsets))
    return (tables, boxes, *others, np.empty(stages - 1, np.int64))
