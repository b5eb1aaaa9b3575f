"""The order head: which device type each stage gets, one stage after the other.

Types exchange messages along their links, then a small network scores each type that is left,
given the last one, what is left and how far the pipeline has come. A type from which the rest would
not fit the memory in any order has no place in it (`lattice`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Float, Int

from apss_jax.policy.decode import NEVER
from apss_jax.policy.placements import LONGEST_DETOUR, TYPE_FEATURES, TYPES, PlacementInput

_STEP_FEATURES: Final = 14


@dataclass(frozen=True)
class OrderConfig:
    """The sizes of an order head."""

    width: int = 48
    hidden: int = 64
    rounds: int = 2


class OrderNetwork(nnx.Module):
    """The order head, on one problem."""

    def __init__(self, config: OrderConfig, rngs: nnx.Rngs) -> None:
        width = config.width
        self.enter = nnx.Linear(TYPE_FEATURES, width, rngs=rngs)
        self.entered = nnx.Linear(width, width, rngs=rngs)
        pair = 2 * width + 1
        self.sends = nnx.List([nnx.Linear(pair, width, rngs=rngs) for _ in range(config.rounds)])
        self.joins = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(config.rounds)])
        self.own = nnx.Linear(width, config.hidden, rngs=rngs)
        self.left = nnx.Linear(width, config.hidden, rngs=rngs)
        self.last = nnx.Linear(width, config.hidden, rngs=rngs)
        self.both = nnx.Linear(width, config.hidden, rngs=rngs)
        self.step = nnx.Linear(_STEP_FEATURES, config.hidden, rngs=rngs)
        self.middle = nnx.Linear(config.hidden, config.hidden, rngs=rngs)
        self.score = nnx.Linear(config.hidden, 1, rngs=rngs)

    def encoded(self, problem: PlacementInput) -> Encoded:
        """Returns what the types learned of each other."""
        types = self.entered(jax.nn.relu(self.enter(problem.types)))
        weights = problem.counts / problem.counts.sum()
        for send, join in zip(self.sends, self.joins, strict=True):
            here = jnp.broadcast_to(types[:, None], (TYPES, TYPES, types.shape[-1]))
            there = jnp.broadcast_to(types[None], here.shape)
            pairs = jnp.concatenate([here, there, problem.links[..., None]], axis=-1)
            heard = jnp.einsum("j,ijf->if", weights, jax.nn.relu(send(pairs)))
            types = types + join(heard)
        together = self.last(types)[:, None] + self.both(types[:, None] * types[None])
        return Encoded(own=self.own(types), left=self.left(types), after=together)

    def logits(
        self, problem: PlacementInput, types: Encoded, state: OrderState, stage: jax.Array
    ) -> Float[jax.Array, "device_types"]:
        """Returns the scores of the types for one stage, those that may not follow included."""
        is_last = jax.nn.one_hot(state.last, TYPES)
        left = (problem.counts - state.used).astype(jnp.float32)
        share = left / jnp.maximum(left.sum(), 1.0)
        hidden = types.own + (share @ types.left)[None]
        hidden = hidden + jnp.einsum("l,ltf->tf", is_last, types.after)
        hidden = hidden + self.step(_step_features(problem, state, stage, is_last, left))
        return self.score(jax.nn.relu(self.middle(jax.nn.relu(hidden))))[:, 0]


class Encoded(NamedTuple):
    """What the scores of all stages have in common, so that no stage works it out again."""

    own: Float[jax.Array, "device_types features"]
    left: Float[jax.Array, "device_types features"]
    """What each type adds as one of those that are left."""
    after: Float[jax.Array, "device_types device_types features"]
    """What the last type adds for each that may follow it."""


class OrderState(NamedTuple):
    """How far an order has come."""

    used: Int[jax.Array, "device_types"]
    last: Int[jax.Array, ""]
    """The type of the stage before; -1 before the first."""
    end: Int[jax.Array, ""]
    """The last layer that the stages so far can hold, all before included."""
    number: Int[jax.Array, ""]
    """The number of the state in the lattice of counts."""


def _step_features(
    problem: PlacementInput,
    state: OrderState,
    stage: jax.Array,
    is_last: jax.Array,
    left: jax.Array,
) -> Float[jax.Array, "device_types features"]:
    stages = problem.num_stages.astype(jnp.float32)
    done = (state.used * problem.share).sum() / stages
    after = jnp.clip(state.number + problem.strides, 0, problem.detours.shape[0] - 1)
    detour = problem.detours[after, jnp.arange(TYPES)].astype(jnp.float32)
    is_open = is_last * (state.used % problem.node_stages != 0)
    columns = [
        left / stages,
        left / jnp.maximum(problem.counts, 1),
        is_last @ problem.links,
        is_last,
        is_open,
        done,
        stage / stages,
        (stages - stage) / 8,
        (stage == 0).astype(jnp.float32),
        (left == 1).astype(jnp.float32),
        is_open.sum(),
        jnp.log(detour + 1e-3) / 3,
        4 * detour,
        (detour >= LONGEST_DETOUR).astype(jnp.float32),
    ]
    return jnp.stack([jnp.broadcast_to(column, (TYPES,)) for column in columns], axis=-1)


def may_follow(
    problem: PlacementInput, state: OrderState, stage: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns which types may take a stage, and how far each of them lets the pipeline reach.

    A stage may begin anywhere up to where those before can reach, and holds a layer at least.
    """
    furthest = problem.furthest[stage]
    start = jnp.arange(furthest.shape[1])[None]
    is_held = (start >= stage) & (start <= state.end) & (furthest > start)
    ends = jnp.where(is_held, furthest, -1).max(axis=1)
    after = state.number + problem.strides
    needed = problem.first_start[jnp.clip(after, 0, problem.first_start.shape[0] - 1)]
    return (state.used < problem.counts) & (ends >= needed), ends


def first_state() -> OrderState:
    """Returns the state before the first stage."""
    return OrderState(
        jnp.zeros(TYPES, jnp.int32), *(jnp.asarray(value, jnp.int32) for value in (-1, 0, 0))
    )


def taken_by(
    problem: PlacementInput, state: OrderState, chosen: jax.Array, ends: jax.Array
) -> OrderState:
    """Returns the state after a stage of the type that is chosen."""
    return OrderState(
        used=state.used + jax.nn.one_hot(chosen, TYPES, dtype=jnp.int32),
        last=chosen,
        end=ends[chosen],
        number=state.number + problem.strides[chosen],
    )


def likelihood(
    network: OrderNetwork, problem: PlacementInput, order: Int[jax.Array, "stages"]
) -> Float[jax.Array, ""]:
    """Returns the log-likelihood of an order; far below -1e8 if it is not allowed."""
    types = network.encoded(problem)

    def step(state: OrderState, row: tuple[jax.Array, jax.Array]) -> tuple[OrderState, jax.Array]:
        stage, chosen = row
        allowed, ends = may_follow(problem, state, stage)
        logits = jnp.where(allowed, network.logits(problem, types, state, stage), NEVER)
        own = jax.nn.log_softmax(logits)[chosen]
        taken = taken_by(problem, state, chosen, ends)
        is_stage = stage < problem.num_stages
        kept = jax.tree.map(lambda new, old: jnp.where(is_stage, new, old), taken, state)
        return kept, jnp.where(is_stage, own, 0.0)

    rows = (jnp.arange(problem.furthest.shape[0]), order.astype(jnp.int32))
    return lax.scan(step, first_state(), rows)[1].sum()
