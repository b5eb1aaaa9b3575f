"""Time of one micro-batch through each chunk of each stage."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from apss_jax.problem import Problem, UnitSums
from apss_jax.strategy import Strategy

PerChunk = Float[jax.Array, "chunks stages"]
PerPass = Float[jax.Array, "chunks stages passes"]


class ChunkTimes(NamedTuple):
    """Seconds of one micro-batch; `comm_s` is the part of both passes that is communication."""

    forward_s: PerChunk
    backward_s: PerChunk
    comm_s: PerChunk


def chunk_sums(problem: Problem, strategy: Strategy) -> UnitSums:
    """Returns the sums over the units of each chunk of each stage."""

    def before(offset: Int[jax.Array, "chunks stages"]) -> Float[jax.Array, "... quantities"]:
        return problem.sums[strategy.setting, offset]

    return UnitSums.of_row(before(strategy.end_unit) - before(strategy.first_unit))


def chunk_times(problem: Problem, strategy: Strategy, sums: UnitSums) -> ChunkTimes:
    """Returns the times of every chunk; a stage of mixed devices runs at its slowest one's pace."""
    compute = _slowest_s(strategy, sums)
    comm = _comm_s(problem, strategy, sums)
    total = compute + comm
    return ChunkTimes(total[..., 0], total[..., 1], comm[..., 0] + comm[..., 1])


# Types of devices and kinds of collectives are few: written out, one after the other, they take a
# third of the time that XLA's loops over such short axes do.


def _slowest_s(strategy: Strategy, sums: UnitSums) -> PerPass:
    slowest = jnp.zeros_like(sums.compute_s[..., 0])
    types = zip(_parts(sums.compute_s), _parts(strategy.has_type), strict=True)
    for compute, is_present in types:
        slowest = jnp.maximum(slowest, jnp.where(is_present[None, :, None], compute, 0.0))
    return slowest


def _comm_s(problem: Problem, strategy: Strategy, sums: UnitSums) -> PerPass:
    figures = (
        sums.comm_bytes,
        strategy.comm_s_per_byte[None, :, None],
        sums.comm_calls,
        _call_s(problem, strategy)[None, :, None],
    )
    whole = [
        moved * per_byte + calls * per_call
        for moved, per_byte, calls, per_call in zip(*map(_parts, figures), strict=True)
    ]
    tensor, context, expert = whole
    return tensor + problem.context_exposed_fraction * context + expert


def _call_s(problem: Problem, strategy: Strategy) -> Float[jax.Array, "stages comm_kinds"]:
    """Returns the time of a call beside its bytes; a group of one device makes none."""
    of_link_s = strategy.comm_s_per_call
    return jnp.where(strategy.comm_s_per_byte > 0, of_link_s + problem.collective_latency_s, 0.0)


def _parts(values: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the entries of the last axis."""
    return jnp.unstack(values, axis=-1)
