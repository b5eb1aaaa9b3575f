"""Different orders of devices at once: a beam that keeps so many beginnings at every stage."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from apss_jax.policy.decode import NEVER
from apss_jax.policy.orders import (
    Encoded,
    OrderNetwork,
    OrderState,
    first_state,
    may_follow,
    taken_by,
)
from apss_jax.policy.placements import TYPES, PlacementInput


class _Beam(NamedTuple):
    """Beginnings of orders, and how likely each is."""

    states: OrderState
    log_likelihood: Float[jax.Array, "samples"]
    score: Float[jax.Array, "samples"]
    """The log-likelihood, or that with the noise that draws."""


def best_orders(
    network: OrderNetwork,
    problem: PlacementInput,
    width: int,
    noise: Float[jax.Array, "stages samples device_types"] | None = None,
) -> tuple[Int[jax.Array, "samples stages"], Float[jax.Array, "samples"]]:
    """Returns `width` different orders and their log-likelihoods.

    Each stage keeps the beginnings that score best of all that the last ones lead to. Without noise
    the score is the likelihood: with a width of one, that is the likeliest type of every stage in
    turn. Standard Gumbel noise draws orders without replacement (Kool et al. 2019, arXiv
    1903.06059, algorithm 1). Where there are fewer orders than `width`, the last are far below -1e8
    and none. Stages beyond the problem's repeat the last type.
    """
    types = network.encoded(problem)
    stages = jnp.arange(problem.furthest.shape[0])

    def step(beam: _Beam, row: tuple[jax.Array, Any]) -> tuple[_Beam, tuple[jax.Array, jax.Array]]:
        stage, noise = row
        steps, ends = jax.vmap(lambda state: _steps(network, problem, types, state, stage))(
            beam.states
        )
        longer = beam.log_likelihood[:, None] + steps
        scores = longer if noise is None else _perturbed(beam.score, longer, noise)
        is_stage = stage < problem.num_stages
        score, places = lax.top_k(scores.reshape(-1), width)
        parents = jnp.where(is_stage, places // TYPES, jnp.arange(width))
        kinds = (places % TYPES).astype(jnp.int32)
        before = jax.tree.map(lambda values: values[parents], beam)
        after = _Beam(
            jax.vmap(taken_by, (None, 0, 0, 0))(problem, before.states, kinds, ends[parents]),
            longer[parents, kinds],
            score,
        )
        kept = jax.tree.map(lambda new, old: jnp.where(is_stage, new, old), after, before)
        return kept, (parents, kept.states.last)

    first = jax.tree.map(
        lambda value: jnp.broadcast_to(value, (width, *value.shape)), first_state()
    )
    alone = jnp.where(jnp.arange(width) == 0, 0.0, 2 * NEVER)
    beam, history = lax.scan(step, _Beam(first, alone, alone), (stages, noise))
    return _traced(*history), beam.log_likelihood


def _steps(
    network: OrderNetwork,
    problem: PlacementInput,
    types: Encoded,
    state: OrderState,
    stage: Int[jax.Array, ""],
) -> tuple[Float[jax.Array, "device_types"], Int[jax.Array, "device_types"]]:
    """Returns how likely each type is at a stage, and how far each lets the pipeline reach."""
    allowed, ends = may_follow(problem, state, stage)
    logits = jnp.where(allowed, network.logits(problem, types, state, stage), NEVER)
    return jnp.where(allowed, jax.nn.log_softmax(logits), NEVER), ends


def _perturbed(
    score: Float[jax.Array, "samples"],
    longer: Float[jax.Array, "samples device_types"],
    noise: Float[jax.Array, "samples device_types"],
) -> Float[jax.Array, "samples device_types"]:
    """Returns noisy log-likelihoods of which the highest of each beginning is its own score.

    Kool et al. 2019, appendix B.3: the form of equation 23 that loses no digits.
    """
    noisy = longer + noise
    below = jnp.minimum(noisy - noisy.max(axis=1, keepdims=True), -1e-9)
    shift = score[:, None] - noisy + jnp.log(-jnp.expm1(below))
    found = score[:, None] - jnp.maximum(shift, 0) - jnp.log1p(jnp.exp(-jnp.abs(shift)))
    return jnp.where(longer > 0.5 * NEVER, found, 2 * NEVER)


def _traced(
    parents: Int[jax.Array, "stages samples"], kinds: Int[jax.Array, "stages samples"]
) -> Int[jax.Array, "samples stages"]:
    """Returns the orders that end in each place of a beam."""

    def back(place: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        parents, kinds = row
        return parents[place], kinds[place]

    _, orders = lax.scan(back, jnp.arange(parents.shape[1]), (parents, kinds), reverse=True)
    return orders.T
