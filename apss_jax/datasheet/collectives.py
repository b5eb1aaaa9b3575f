"""Bytes and calls of the collectives inside a unit, as one-way collectives.

An all-reduce is two of them; sequence parallelism does the two apart, with the same volume.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from apss_jax.datasheet.attention import state_values
from apss_jax.datasheet.grid import Grid, SettingColumn, SettingFlags
from apss_jax.datasheet.layer_facts import LayerFacts
from apss_jax.schema.layers import Attention, LatentAttention
from apss_jax.schema.tables import COMM_KINDS

CommValues = Float[np.ndarray, "settings passes comm_kinds"]
"""Bytes or calls by pass and kind of collective, one row for each setting."""

FP32_BYTES = 4
LOSS_BYTES = 2 * FP32_BYTES  # per token: the loss reduces a maximum and a sum


@dataclass(frozen=True)
class Traffic:
    """Collectives of one kind in one pass."""

    num_bytes: SettingColumn
    calls: SettingColumn

    def plus(self, other: Traffic) -> Traffic:
        """Returns both together."""
        return Traffic(self.num_bytes + other.num_bytes, self.calls + other.calls)

    def times(self, factor: SettingColumn | SettingFlags | float) -> Traffic:
        """Returns the traffic that many times over."""
        return Traffic(self.num_bytes * factor, self.calls * factor)


def all_reduces(count: int, num_bytes: SettingColumn) -> Traffic:
    """Returns `count` all-reduces of a buffer."""
    return Traffic(2.0 * count * num_bytes, np.full_like(num_bytes, 2.0 * count))


def tensor_traffic(facts: LayerFacts, grid: Grid) -> Traffic:
    """Returns one pass's all-reduces: after every residual branch (Megatron, arXiv 1909.08053)."""
    hidden_bytes = grid.value_bytes * grid.tokens * facts.hidden_size
    return all_reduces(facts.num_parts, hidden_bytes).times(grid.tensor_parallel > 1)


def gate_traffic(facts: LayerFacts, grid: Grid) -> Traffic:
    """Returns the all-reduces of gradients beside those of branches, where gates have their own."""
    hidden_bytes = grid.value_bytes * grid.tokens * facts.hidden_size
    is_reduced = (grid.tensor_parallel > 1) & (grid.sequence_divisor == 1)
    return all_reduces(facts.num_gates, hidden_bytes).times(is_reduced)


def context_traffic(facts: LayerFacts, grid: Grid) -> Traffic:
    """Returns one gathering of keys and values, or of carried states, over the context ranks."""
    total = Traffic(np.zeros_like(grid.tokens), np.zeros_like(grid.tokens))
    for mixer in facts.mixers:
        if isinstance(mixer, Attention | LatentAttention):
            values = mixer.kv_width * grid.all_tokens
            num_bytes = grid.value_bytes * values / grid.tensor_parallel
        else:
            carried = grid.micro_batch * grid.context_parallel
            num_bytes = FP32_BYTES * state_values(mixer) * carried / grid.tensor_parallel
        total = total.plus(Traffic(num_bytes, np.ones_like(num_bytes)))
    return total.times(grid.context_parallel > 1)


def expert_traffic(facts: LayerFacts, grid: Grid) -> Traffic:
    """Returns one pass's two all-to-alls: tokens to their experts and back."""
    routed = grid.tokens * facts.routed_width / grid.sequence_divisor
    calls = np.full_like(routed, 2.0 if facts.routed_width else 0.0)
    return Traffic(2.0 * grid.value_bytes * routed, calls).times(grid.expert_parallel > 1)


def layer_traffic(
    facts: LayerFacts, grid: Grid, *, reduces_gate_apart: bool = False
) -> tuple[CommValues, CommValues]:
    """Returns (bytes, calls) of a layer, the collectives that recomputation repeats included."""
    tensor = tensor_traffic(facts, grid)
    context = context_traffic(facts, grid)
    expert = expert_traffic(facts, grid)
    gates = gate_traffic(facts, grid).times(float(reduces_gate_apart))
    again = grid.recomputes_all
    # The backward ring gathers keys and values again and returns their gradients.
    context_backward = 2.0 + (again | grid.recomputes_scores)
    return stacked(
        forward=(tensor, context, expert),
        backward=(
            tensor.times(1.0 + again).plus(gates),
            context.times(context_backward),
            expert.times(1.0 + again),
        ),
    )


def stacked(
    *, forward: tuple[Traffic, ...], backward: tuple[Traffic, ...]
) -> tuple[CommValues, CommValues]:
    """Returns (bytes, calls) with the kinds in the order of `COMM_KINDS`; missing ones are zero."""
    zero = np.zeros_like(forward[0].num_bytes)
    rows = [[*each, *_nothing(zero, len(COMM_KINDS) - len(each))] for each in (forward, backward)]
    num_bytes = np.stack([np.hstack([t.num_bytes for t in row]) for row in rows], axis=1)
    calls = np.stack([np.hstack([t.calls for t in row]) for row in rows], axis=1)
    return num_bytes, calls


def _nothing(zero: SettingColumn, count: int) -> list[Traffic]:
    return [Traffic(zero, zero)] * count
