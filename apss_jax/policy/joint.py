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
    inputs, is_feasible = placement_inputs(instances)
    orders, likelihood = _orders(policy, inputs, samples, seed)
    kept = np.flatnonzero(is_feasible).tolist()
    found: list[Proposals | None] = [None] * len(instances)
    own = [np.asarray(orders[row, :, : instances[row].num_stages], np.int64) for row in kept]
    pipelines = [
        instances[row].ordered(order) for row, some in zip(kept, own, strict=True) for order in some
    ]
    if not pipelines:
        return found
    chains, _ = chains_of(pipelines, is_simulated=True)
    ends = decoded(policy.config, policy.params, chains, samples=1, seed=seed)[:, 0]
    for place, row in enumerate(kept):
        some = ends[place * samples : (place + 1) * samples, : own[place].shape[1] - 1]
        found[row] = Proposals(own[place], some.astype(np.int64) - 1, likelihood[row])
    return found


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
