"""Bytes on one device of each stage at the moment when it holds most."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from apss_jax.cost.compute import span
from apss_jax.problem import Problem
from apss_jax.strategy import Strategy

PerStage = Float[jax.Array, " stages"]


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


def stage_memory(problem: Problem, strategy: Strategy) -> StageMemory:
    """Returns the memory of each stage.

    ZeRO shards the optimizer from stage 1, gradients from 2, weights from 3 (arXiv 1910.02054).
    Activations are what each chunk saves, times the micro-batches it holds at once.
    """
    dense = _states(problem.dense_parameters, problem, strategy, tied=True)
    expert = _states(problem.expert_parameters, problem, strategy, tied=False)
    used = jnp.any(strategy.end_unit > strategy.first_unit, axis=0)
    saved = jnp.sum(span(problem.saved_bytes[strategy.setting], strategy) * strategy.in_flight, 0)
    other = (problem.reserved_bytes + _working_bytes(problem, strategy)) * used
    weights, gradients, optimizer = (a + b for a, b in zip(dense, expert, strict=True))
    return StageMemory(weights, gradients, optimizer, saved, other)


def _states(
    prefix: Float[jax.Array, "settings offsets"],
    problem: Problem,
    strategy: Strategy,
    *,
    tied: bool,
) -> tuple[PerStage, PerStage, PerStage]:
    owned = jnp.sum(span(prefix[strategy.setting], strategy), axis=0)
    if tied:
        owned = owned + tied_copy(problem, strategy)
    shards = strategy.shards if tied else strategy.expert_shards

    def part(bytes_each: Float[jax.Array, ""], from_stage: int) -> PerStage:
        return owned * bytes_each / jnp.where(strategy.zero_stage >= from_stage, shards, 1.0)

    return (
        part(problem.weight_bytes, 3),
        part(problem.gradient_bytes, 2),
        part(problem.optimizer_bytes, 1),
    )


def tied_copy(problem: Problem, strategy: Strategy) -> PerStage:
    """Returns the second copy of a tied token table: on the head's stage, if it stands apart."""
    stages = strategy.end_unit.shape[1]
    last = jnp.argmax(jnp.max(strategy.end_unit, axis=0))
    copy = jnp.where(strategy.ends_apart, problem.tied_parameters[strategy.setting], 0.0)
    return jnp.where(jnp.arange(stages) == last, copy, 0.0)


def _working_bytes(problem: Problem, strategy: Strategy) -> PerStage:
    units = jnp.arange(problem.working_bytes.shape[-1])[None, None]
    inside = (units >= strategy.first_unit[..., None]) & (units < strategy.end_unit[..., None])
    held = jnp.where(inside, problem.working_bytes[strategy.setting][None, None], 0.0)
    return jnp.max(held, axis=(0, 2))
