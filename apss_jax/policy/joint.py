"""Devices and cuts from the network: first the order of device types, then the cuts on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float32, Int, Int64

from apss_jax.partitioning.joint import JointInstance
from apss_jax.policy.batched import BATCHES, decoded, likely_orders
from apss_jax.policy.chains import chains_of
from apss_jax.policy.decode import NEVER
from apss_jax.policy.placements import placement_inputs
from apss_jax.policy.weights import Policy

Orders = tuple[Int64[np.ndarray, "samples stages"], Float32[np.ndarray, "samples"]]
"""Orders of one problem and the log-likelihood of each."""


@dataclass(frozen=True, eq=False)
class Proposals:
    """What the network proposes for one problem, the likeliest order first."""

    orders: Int64[np.ndarray, "samples stages"]
    cuts: Int64[np.ndarray, "samples cuts"]
    log_likelihood: Float32[np.ndarray, "samples"]
    """Of the orders."""


def proposed(
    policy: Policy, instances: Sequence[JointInstance], *, samples: int = 1
) -> list[Proposals | None]:
    """Returns orders with the likeliest cuts of each; None where no order fits the memory.

    Every order that is proposed can be cut so that it fits, and is cut so. There are `samples`,
    or as many as fit.
    """
    ordered = proposed_orders(policy, instances, samples=samples)
    pipelines = [
        instance.ordered(order)
        for instance, own in zip(instances, ordered, strict=True)
        for order in (own[0] if own else ())
    ]
    if not pipelines:
        return [None] * len(instances)
    chains, _ = chains_of(pipelines, is_simulated=True)
    ends = iter(decoded(policy.config, policy.params, chains, samples=1, seed=0)[:, 0])
    return [own and _cut(own, ends) for own in ordered]


def _cut(own: Orders, ends: Iterator[Int[np.ndarray, "stages"]]) -> Proposals:
    """Returns the orders of a problem with the next of the partitions as their cuts."""
    orders, likelihood = own
    some = np.stack([next(ends)[: orders.shape[1] - 1] for _ in orders])
    return Proposals(orders, some.astype(np.int64) - 1, likelihood)


def proposed_orders(
    policy: Policy, instances: Sequence[JointInstance], *, samples: int = 1
) -> list[Orders | None]:
    """Returns orders and their log-likelihood, the likeliest first; None where none fits.

    One is that of the likeliest type for each stage in turn; several are those of a beam.
    """
    inputs, is_feasible = placement_inputs(instances)
    orders, likelihood = _likeliest(policy, inputs, samples)
    found: list[Orders | None] = [None] * len(instances)
    for row in np.flatnonzero(is_feasible).tolist():
        is_order = likelihood[row] > 0.5 * NEVER
        own = orders[row, is_order, : instances[row].num_stages]
        found[row] = own.astype(np.int64), likelihood[row, is_order]
    return found


def _likeliest(
    policy: Policy, inputs: object, samples: int
) -> tuple[Int[np.ndarray, "batch samples stages"], Float32[np.ndarray, "batch samples"]]:
    """Returns orders of all problems, in parts of few sizes."""
    count = len(jax.tree.leaves(inputs)[0])
    size = next((size for size in BATCHES if count <= size), BATCHES[-1])
    parts = []
    for start in range(0, count, size):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        part = jax.tree.map(lambda values, rows=rows: values[rows], inputs)
        parts.append(likely_orders(policy.order_config, policy.order_params, part, samples))
    orders, likelihood = (np.concatenate([np.asarray(p[i]) for p in parts]) for i in range(2))
    return orders[:count], likelihood[:count]
