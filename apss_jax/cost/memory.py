"""Bytes on one device of each stage at the moment when it holds most."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float, Int

from apss_jax.problem import GATHERED_UNITS, Problem, UnitSums
from apss_jax.strategy import Strategy

PerStage = Float[jax.Array, " stages"]
PerChunk = Float[jax.Array, "chunks stages"]
PerKind = tuple[PerStage, PerStage]  # dense parameters and experts apart


class StageMemory(NamedTuple):
    """The parts of a stage's memory, in bytes on one device."""

    weights: PerStage
    gradients: PerStage
    optimizer: PerStage
    activations: PerStage
    other: PerStage

    @property
    def total_bytes(self) -> PerStage:
        """Returns the sum of the parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.other


def stage_memory(problem: Problem, strategy: Strategy, sums: UnitSums) -> StageMemory:
    """Returns the memory of each stage.

    ZeRO shards the optimizer from stage 1, gradients from 2, weights from 3 (arXiv 1910.02054);
    beside a pipeline the optimizer alone, because gathered weights and gradients that are not yet
    reduced stay until its last micro-batch. Activations are what each chunk saves, times the
    micro-batches it holds at once.
    """
    owned = owned_parameters(problem, strategy, sums)
    owners = (strategy.shards, strategy.expert_shards)

    def states(bytes_each: Float[jax.Array, ""], from_stage: int) -> PerStage:
        is_sharded = (strategy.zero_stage >= from_stage) & ((from_stage < 2) | ~strategy.ends_apart)
        dense, expert = (
            held / jnp.where(is_sharded, over, 1.0)
            for held, over in zip(owned, owners, strict=True)
        )
        return bytes_each * (dense + expert)

    used = jnp.any(strategy.end_unit > strategy.first_unit, axis=0)
    return StageMemory(
        weights=states(problem.weight_bytes, 3),
        gradients=states(problem.gradient_bytes, 2),
        optimizer=states(problem.optimizer_bytes, 1),
        activations=jnp.sum(sums.saved_bytes * strategy.in_flight, axis=0),
        other=(
            problem.reserved_bytes
            + _working_bytes(problem, strategy)
            + _gathered_bytes(problem, strategy, owned)
        )
        * used,
    )


def _gathered_bytes(problem: Problem, strategy: Strategy, owned: PerKind) -> PerStage:
    """Returns the whole weights of two units under ZeRO 3, units taken as equal.

    The next unit's weights are gathered while one computes. Its whole gradients take the place of
    activations that are no longer needed.
    """
    units = jnp.sum(strategy.end_unit - strategy.first_unit, axis=0)
    each = GATHERED_UNITS * problem.weight_bytes / jnp.maximum(units, 1)
    held = each * (owned[0] + owned[1])
    return jnp.where((strategy.zero_stage == 3) & ~strategy.ends_apart, held, 0.0)


def owned_parameters(problem: Problem, strategy: Strategy, sums: UnitSums) -> PerKind:
    """Returns the dense parameters of each stage, and those of its experts.

    The last one holds a second copy of a tied token table, if the embedding stands apart.
    """
    last = jnp.max(strategy.end_unit, axis=0)
    holds_copy = strategy.ends_apart & (last == jnp.max(last))
    copy = jnp.where(holds_copy, problem.tied_parameters[strategy.setting], 0.0)
    dense, expert = (jnp.sum(held, axis=0) for held in jnp.unstack(sums.parameters, axis=-1))
    return dense + copy, expert


def _working_bytes(problem: Problem, strategy: Strategy) -> PerStage:
    """Returns the most of each stage's units: of two overlapping spans that cover each chunk."""
    size = jnp.maximum(strategy.end_unit - strategy.first_unit, 1)
    span = 31 - lax.clz(size)
    last = strategy.end_unit - (1 << span)

    def largest(start: Int[jax.Array, "chunks stages"]) -> PerChunk:
        return problem.working_bytes[strategy.setting, span, jnp.maximum(start, 0)]

    is_empty = strategy.end_unit == strategy.first_unit
    held = jnp.maximum(largest(strategy.first_unit), largest(last))
    return jnp.max(jnp.where(is_empty, 0.0, held), axis=0)
