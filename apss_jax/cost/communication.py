"""What crosses links between the layers: stage transfers and gradient reduction."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from apss_jax.cost.compute import last_unit, span
from apss_jax.cost.memory import tied_copy
from apss_jax.problem import Problem
from apss_jax.strategy import Strategy

PerStage = Float[jax.Array, " stages"]
PerChunk = Float[jax.Array, "chunks stages"]
# Memory traffic of an Adam update per parameter (docs/cost-model.md): master weight, two moments
# and gradient on the shard that a device owns; the half-precision copy on the whole device.
OPTIMIZER_SHARDED_BYTES = 28.0
OPTIMIZER_WHOLE_BYTES = 6.0
HIDING_FRACTION = 0.8  # of compute time, behind which communication can hide


class StageTail(NamedTuple):
    """What a stage does after its last backward pass."""

    data_comm_s: PerStage
    optimizer_s: PerStage


def transfer_s(problem: Problem, strategy: Strategy) -> PerChunk:
    """Returns the time of the message that leaves each chunk for the next virtual stage."""
    moved = problem.boundary_bytes[strategy.setting][last_unit(strategy)]
    return moved * strategy.transfer_s_per_byte + strategy.transfer_s_per_call


def stage_tail(problem: Problem, strategy: Strategy, compute_s: PerStage) -> StageTail:
    """Returns exposed gradient communication and the optimizer update of each stage.

    A stack hides a share of its gradient communication, but no more than there is compute to hide
    it behind: one micro-batch's, forward and backward (`compute_s`), where gradients are reduced
    once a step; every micro-batch's under ZeRO-3, which gathers weights for each.
    """
    dense = _stage_sum(problem.dense_parameters, strategy) + tied_copy(problem, strategy)
    expert = _stage_sum(problem.expert_parameters, strategy)
    owned = jnp.stack([dense, expert], axis=-1)
    whole_s = jnp.sum(_reduction_s(problem, strategy, owned), axis=-1)
    rounds = jnp.where(strategy.zero_stage == 3, strategy.num_micro_batches, 1.0)
    hidden_s = jnp.minimum(
        (1.0 - problem.gradient_exposed_fraction) * whole_s, HIDING_FRACTION * rounds * compute_s
    )
    return StageTail(whole_s - hidden_s, _optimizer_s(problem, strategy, owned))


def _stage_sum(prefix: Float[jax.Array, "settings offsets"], strategy: Strategy) -> PerStage:
    return jnp.sum(span(prefix[strategy.setting], strategy), axis=0)


def _reduction_s(
    problem: Problem, strategy: Strategy, owned: Float[jax.Array, "stages parameter_kinds"]
) -> Float[jax.Array, "stages parameter_kinds"]:
    """Returns all gradient communication of a step.

    Gradients are scattered, then gradients (ZeRO-0) or parameters (1, 2) gathered. ZeRO-3 gathers
    the parameters of each unit before each of its passes and scatters gradients once.
    """
    units = jnp.sum(strategy.end_unit - strategy.first_unit, axis=0).astype(owned.dtype)
    is_sharded = strategy.zero_stage == 3
    calls = jnp.where(is_sharded, units, 1.0)[:, None]

    def one_way(bytes_each: Float[jax.Array, ""]) -> Float[jax.Array, "stages parameter_kinds"]:
        sent_s = owned * bytes_each * strategy.gradient_s_per_byte
        return (sent_s + calls * strategy.gradient_s_per_call) * (owned > 0)

    scatter = one_way(problem.reduced_gradient_bytes)
    gather = one_way(problem.weight_bytes)
    second = jnp.where(strategy.zero_stage == 0, scatter, gather)
    gathers = jnp.where(is_sharded, 2.0 * strategy.num_micro_batches * gather, second)
    return scatter + gathers


def _optimizer_s(
    problem: Problem, strategy: Strategy, owned: Float[jax.Array, "stages parameter_kinds"]
) -> PerStage:
    spread = jnp.stack([strategy.shards, strategy.expert_shards])
    held = jnp.where(strategy.zero_stage >= 1, owned / spread[None], owned)
    moved = jnp.sum(OPTIMIZER_SHARDED_BYTES * held + OPTIMIZER_WHOLE_BYTES * owned, axis=-1)
    slowest = jnp.max(jnp.where(strategy.has_type, problem.memory_s_per_byte[None], 0.0), axis=-1)
    return moved * slowest
