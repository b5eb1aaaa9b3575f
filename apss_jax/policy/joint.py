"""Devices and cuts from the network: first the order of device types, then the cuts on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float32, Int, Int64

from apss_jax.partitioning.joint import JointInstance
from apss_jax.policy.batched import BATCHES, decoded, likely_orders
from apss_jax.policy.chains import chains_of
from apss_jax.policy.placements import placement_inputs
from apss_jax.policy.weights import Policy


@dataclass(frozen=True, eq=False)
class Proposals:
    """What the network proposes for one problem, the likeliest order first."""

    orders: Int64[np.ndarray, "samples stages"]
    cuts: Int64[np.ndarray, "samples cuts"]
    log_likelihood: Float32[np.ndarray, "samples"]
    """Of the orders."""


def proposed(
    policy: Policy, instances: Sequence[JointInstance], *, samples: int = 1, seed: int = 0
) -> list[Proposals | None]:
    """Returns orders with the likeliest cuts of each; None where no order fits the memory.

    Every order that is proposed can be cut so that it fits, and is cut so.
    """
    found: list[Proposals | None] = [None] * len(instances)
    own = {
        row: orders
        for row, orders in enumerate(proposed_orders(policy, instances, samples=samples, seed=seed))
        if orders is not None
    }
    pipelines = [
        instances[row].ordered(order) for row, (orders, _) in own.items() for order in orders
    ]
    if not pipelines:
        return found
    chains, _ = chains_of(pipelines, is_simulated=True)
    ends = decoded(policy.config, policy.params, chains, samples=1, seed=seed)[:, 0]
    for place, (row, (orders, likelihood)) in enumerate(own.items()):
        some = ends[place * samples : (place + 1) * samples, : orders.shape[1] - 1]
        found[row] = Proposals(orders, some.astype(np.int64) - 1, likelihood)
    return found


def proposed_orders(
    policy: Policy, instances: Sequence[JointInstance], *, samples: int = 1, seed: int = 0
) -> list[tuple[Int64[np.ndarray, "samples stages"], Float32[np.ndarray, "samples"]] | None]:
    """Returns orders and their log-likelihood, the likeliest first; None where none fits."""
    inputs, is_feasible = placement_inputs(instances)
    orders, likelihood = _orders(policy, inputs, samples, seed)
    return [
        (np.asarray(orders[row, :, : each.num_stages], np.int64), likelihood[row])
        if is_feasible[row]
        else None
        for row, each in enumerate(instances)
    ]


def _orders(
    policy: Policy, inputs: object, samples: int, seed: int
) -> tuple[Int[np.ndarray, "batch samples stages"], Float32[np.ndarray, "batch samples"]]:
    """Returns orders of all problems, in parts of few sizes."""
    count = len(jax.tree.leaves(inputs)[0])
    size = next((size for size in BATCHES if count <= size), BATCHES[-1])
    parts = []
    for start in range(0, count, size):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        part = jax.tree.map(lambda values, rows=rows: values[rows], inputs)
        key = jax.random.fold_in(jax.random.key(seed), start)
        parts.append(likely_orders(policy.order_config, policy.order_params, part, key, samples))
    orders, likelihood = (np.concatenate([np.asarray(p[i]) for p in parts]) for i in range(2))
    return orders[:count], likelihood[:count]
