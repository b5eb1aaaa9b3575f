"""What crosses links between the layers: stage transfers and gradient reduction."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from apss_jax.cost.memory import PerKind, owned_parameters
from apss_jax.problem import Problem, UnitSums
from apss_jax.strategy import Strategy

PerStage = Float[jax.Array, " stages"]
PerChunk = Float[jax.Array, "chunks stages"]
# Memory traffic of an Adam update per parameter (docs/cost-model.md): master weight, two moments
# and gradient on the shard that a device owns; the half-precision copy on the whole device.
OPTIMIZER_SHARDED_BYTES = 28.0
OPTIMIZER_WHOLE_BYTES = 6.0
HIDING_FRACTION = 0.8  # of compute time, behind which communication can hide


class _Links(NamedTuple):
    """What the gradients of one kind of parameters see: within a sharding group, and across."""

    s_per_byte: PerStage
    s_per_call: PerStage
    replica_s_per_byte: PerStage
    replica_s_per_call: PerStage


class StageTail(NamedTuple):
    """What a stage does after its last backward pass."""

    data_comm_s: PerStage
    optimizer_s: PerStage


def transfer_s(problem: Problem, strategy: Strategy) -> PerChunk:
    """Returns the time of the message that leaves each chunk for the next virtual stage."""
    last_unit = jnp.maximum(strategy.end_unit - 1, 0)  # 0 for an empty chunk
    moved = problem.boundary_bytes[strategy.setting, last_unit]
    sent_s = moved * strategy.transfer_s_per_byte + strategy.transfer_s_per_call
    is_used = strategy.end_unit > strategy.first_unit
    return jnp.where(is_used, sent_s + problem.transfer_latency_s, 0.0)


def stage_tail(
    problem: Problem, strategy: Strategy, sums: UnitSums, compute_s: PerStage
) -> StageTail:
    """Returns exposed gradient communication and the optimizer update of each stage.

    A stack hides a share of its gradient communication, but no more than there is compute to hide
    it behind: `compute_s` is one micro-batch's, forward and backward.
    """
    owned = owned_parameters(problem, strategy, sums)
    links = zip(
        *(jnp.unstack(values, axis=-1) for values in _reduction_links(problem, strategy)),
        strict=True,
    )
    dense_s, expert_s = (
        _reduction_s(problem, strategy, held, _Links(*link))
        for held, link in zip(owned, links, strict=True)
    )
    whole_s = dense_s + expert_s + _owner_steps_s(problem, strategy)
    hidden_s = jnp.minimum(
        (1.0 - problem.exposed_fractions[strategy.zero_stage]) * whole_s,
        HIDING_FRACTION * _rounds(strategy) * compute_s,
    )
    return StageTail(whole_s - hidden_s, _optimizer_s(problem, strategy, owned))


def _reduction_links(problem: Problem, strategy: Strategy) -> _Links:
    """Returns the links of both kinds of parameters, side by side.

    Every bucket of a sharding group passes a ring of all its ranks step by step.
    """
    ranks = jnp.stack([strategy.shards, strategy.expert_shards])
    steps_s = jnp.maximum(ranks - 1.0, 0.0) * problem.bucket_step_s_per_byte
    return _Links(
        strategy.gradient_s_per_byte + steps_s[None, :],
        strategy.gradient_s_per_call,
        strategy.replica_s_per_byte,
        strategy.replica_s_per_call,
    )


def _owner_steps_s(problem: Problem, strategy: Strategy) -> PerStage:
    """Returns what whole tensors with one owner each take in a step, beside their bytes.

    A reduction to one rank and a broadcast from it run as rings over the sharding group, tensor by
    tensor (NCCL has no other algorithm for them).
    """
    units = jnp.sum(strategy.end_unit - strategy.first_unit, axis=0)
    has_owners = (strategy.zero_stage == 1) | (strategy.zero_stage == 2)
    return jnp.where(has_owners, problem.owner_step_s * strategy.shards * units, 0.0)


def _rounds(strategy: Strategy) -> Float[jax.Array, ""]:
    """Returns how many micro-batches' compute is left when the first gradients are final.

    The last micro-batch's own; and of interleaved chunks, as many micro-batches of every other
    chunk as there are stages. Under ZeRO-3, which gathers weights for each, all of them.
    """
    is_used = strategy.end_unit > strategy.first_unit
    chunks, stages = (jnp.sum(jnp.any(is_used, axis=axis)) for axis in (1, 0))
    left = 1.0 + stages * (chunks - 1.0) / jnp.maximum(chunks, 1)
    left = jnp.minimum(left, strategy.num_micro_batches)
    return jnp.where(strategy.zero_stage == 3, strategy.num_micro_batches, left)


def _reduction_s(
    problem: Problem,
    strategy: Strategy,
    owned: PerStage,
    links: _Links,
) -> PerStage:
    """Returns all gradient communication of a step for one kind of parameters.

    Gradients are scattered, then gradients (ZeRO-0) or parameters (1, 2) gathered. ZeRO-3 gathers
    the parameters of each unit before each of its passes and scatters gradients once. Where several
    groups hold the same shards, what was scattered is reduced over them (2-hop gradient
    synchronization, Zhang et al. 2022, arXiv 2205.00119).
    """
    units = jnp.sum(strategy.end_unit - strategy.first_unit, axis=0).astype(owned.dtype)
    is_sharded = strategy.zero_stage == 3
    scattered = problem.reduced_gradient_bytes
    gathered = jnp.where(strategy.zero_stage == 0, scattered, problem.weight_bytes)
    times = jnp.where(is_sharded, 2.0 * strategy.num_micro_batches, 1.0)
    each_s = (scattered + times * gathered) * links.s_per_byte
    each_s += scattered * links.replica_s_per_byte
    calls_s = (1.0 + times) * links.s_per_call + links.replica_s_per_call
    return (owned * each_s + jnp.where(is_sharded, units, 1.0) * calls_s) * (owned > 0)


def _optimizer_s(problem: Problem, strategy: Strategy, owned: PerKind) -> PerStage:
    dense, expert = owned
    is_sharded = strategy.zero_stage >= 1
    own = dense / jnp.where(is_sharded, strategy.shards, 1.0)
    own += expert / jnp.where(is_sharded, strategy.expert_shards, 1.0)
    moved = OPTIMIZER_SHARDED_BYTES * own + OPTIMIZER_WHOLE_BYTES * (dense + expert)
    slowest = jnp.max(jnp.where(strategy.has_type, problem.memory_s_per_byte[None], 0.0), axis=-1)
    return moved * slowest
