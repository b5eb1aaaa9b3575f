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
ZERO3_HIDDEN_FRACTION = 0.8  # of the compute time that parameter gathering may hide behind
ZERO3_EXPOSED_FRACTION = 0.15  # of the gathering that is never hidden


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

    `compute_s` is one micro-batch forward and backward, which ZeRO-3 hides its gathers behind.
    """
    dense = _stage_sum(problem.dense_parameters, strategy) + tied_copy(problem, strategy)
    expert = _stage_sum(problem.expert_parameters, strategy)
    owned = jnp.stack([dense, expert], axis=-1)
    data_comm = jnp.sum(_reduction_s(problem, strategy, owned, compute_s), axis=-1)
    return StageTail(data_comm, _optimizer_s(problem, strategy, owned))


def _stage_sum(prefix: Float[jax.Array, "settings offsets"], strategy: Strategy) -> PerStage:
    return jnp.sum(span(prefix[strategy.setting], strategy), axis=0)


def _reduction_s(
    problem: Problem,
    strategy: Strategy,
    owned: Float[jax.Array, "stages parameter_kinds"],
    compute_s: PerStage,
) -> Float[jax.Array, "stages parameter_kinds"]:
    """Gradients: reduce-scatter, then an all-gather of gradients (ZeRO-0) or parameters (1, 2)."""

    def one_way(
        sent_bytes: Float[jax.Array, "stages parameter_kinds"],
    ) -> Float[jax.Array, "stages parameter_kinds"]:
        return sent_bytes * strategy.gradient_s_per_byte + strategy.gradient_s_per_call

    scatter = one_way(owned * problem.reduced_gradient_bytes)
    gather = one_way(owned * problem.weight_bytes)
    second = jnp.where(strategy.zero_stage == 0, scatter, gather)
    sharded = strategy.num_micro_batches * 2.0 * gather + scatter
    share = sharded / jnp.maximum(jnp.sum(sharded, axis=-1, keepdims=True), 1e-30)
    window = ZERO3_HIDDEN_FRACTION * strategy.num_micro_batches * compute_s[:, None] * share
    zero3 = jnp.maximum(sharded - window, 0.0) + ZERO3_EXPOSED_FRACTION * sharded
    plain = problem.gradient_exposed_fraction * (scatter + second)
    return jnp.where(strategy.zero_stage == 3, zero3, plain) * (owned > 0)


def _optimizer_s(
    problem: Problem, strategy: Strategy, owned: Float[jax.Array, "stages parameter_kinds"]
) -> PerStage:
    spread = jnp.stack([strategy.shards, strategy.expert_shards])
    held = jnp.where(strategy.zero_stage >= 1, owned / spread[None], owned)
    moved = jnp.sum(OPTIMIZER_SHARDED_BYTES * held + OPTIMIZER_WHOLE_BYTES * owned, axis=-1)
    slowest = jnp.max(jnp.where(strategy.has_type, problem.memory_s_per_byte[None], 0.0), axis=-1)
    return moved * slowest
