"""Time of one micro-batch through each chunk of each stage."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from apss_jax.problem import Problem
from apss_jax.schema.tables import COMM_KINDS
from apss_jax.strategy import Strategy

PerChunk = Float[jax.Array, "chunks stages"]


class ChunkTimes(NamedTuple):
    """Seconds of one micro-batch; `comm_s` is the part of both passes that is communication."""

    forward_s: PerChunk
    backward_s: PerChunk
    comm_s: PerChunk


def span(
    prefix: Float[jax.Array, "... offsets"], strategy: Strategy
) -> Float[jax.Array, "... chunks stages"]:
    """Returns the sum over the units of each chunk."""
    return prefix[..., strategy.end_unit] - prefix[..., strategy.first_unit]


def chunk_times(problem: Problem, strategy: Strategy) -> ChunkTimes:
    """Returns the times of every chunk; a stage of mixed devices runs at its slowest one's pace."""
    on_each_type = span(problem.compute_s[strategy.setting], strategy)
    present = strategy.has_type.T[None, :, None, :]
    compute = jnp.max(jnp.where(present, on_each_type, 0.0), axis=1)
    comm = _comm_s(problem, strategy)
    total = compute + comm
    return ChunkTimes(total[0], total[1], comm[0] + comm[1])


def _comm_s(problem: Problem, strategy: Strategy) -> Float[jax.Array, "passes chunks stages"]:
    moved = span(problem.comm_bytes[strategy.setting], strategy)
    calls = span(problem.comm_calls[strategy.setting], strategy)
    exposed = (
        jnp.array([1.0, 0.0, 1.0])
        .at[COMM_KINDS.index("context")]
        .set(problem.context_exposed_fraction)
    )
    per_byte = (strategy.comm_s_per_byte * exposed[None]).T[None, :, None, :]
    per_call = (strategy.comm_s_per_call * exposed[None]).T[None, :, None, :]
    return jnp.sum(moved * per_byte + calls * per_call, axis=1)


def last_unit(strategy: Strategy) -> Int[jax.Array, "chunks stages"]:
    """Returns the last unit of each chunk; 0 for an empty one."""
    return jnp.maximum(strategy.end_unit - 1, 0)
