"""Bytes that a layer keeps from its forward pass for its backward pass.

Korthikanti et al. 2022 (arXiv 2205.05198), equations 1 to 5, written for any list of weights: with
16-bit values a GPT layer keeps s b h (10 + 24 / t + 5 a s / (h t)) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apss_jax.datasheet.attention import chunk_tokens, state_values
from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.layer_facts import LayerFacts
from apss_jax.schema.layers import Attention, LatentAttention

MASK_BYTES = 1  # a dropout mask, per value; kept by stacks with dropout and without it
# A branch keeps the input of its norm and of its first product.
HIDDEN_PER_PART = 2
# Softmax and dropout outputs of plain attention; flash attention keeps neither.
SCORES_KEPT = 2
# An unfused norm keeps its input in FP32 and the normalised value.
UNFUSED_NORM_BYTES = 6
# Tokens in the order of the experts, before them and after them.
ROUTED_KEPT = 2


@dataclass(frozen=True)
class Kept:
    """Activation bytes of one layer for one micro-batch on one device."""

    saved_bytes: SettingColumn
    working_bytes: SettingColumn


def kept(facts: LayerFacts, grid: Grid, *, flash: bool, fused_norm: bool) -> Kept:
    """Returns what is kept, and what recomputation holds again for a moment."""
    everything = _linear_bytes(facts, grid, fused_norm=fused_norm)
    scores = _score_bytes(facts, grid) * (0.0 if flash else 1.0)
    inputs = grid.value_bytes * grid.tokens * facts.hidden_size / grid.sequence_divisor
    saved = np.where(grid.recomputes_scores, everything, everything + scores)
    working = np.where(grid.recomputes_scores, scores, 0.0)
    return Kept(
        saved_bytes=np.where(grid.recomputes_all, inputs, saved),
        working_bytes=np.where(grid.recomputes_all, everything + scores, working),
    )


def _linear_bytes(facts: LayerFacts, grid: Grid, *, fused_norm: bool) -> SettingColumn:
    per_part = HIDDEN_PER_PART * grid.value_bytes + MASK_BYTES
    extra_norms = max(0, facts.num_norms - facts.num_parts)
    per_norm = 0 if fused_norm else UNFUSED_NORM_BYTES
    hidden = per_part * facts.num_parts + per_norm * facts.num_norms
    hidden += grid.value_bytes * extra_norms
    routed_bytes = ROUTED_KEPT * grid.value_bytes * facts.routed_width
    hidden_bytes = (hidden * facts.hidden_size + routed_bytes) / grid.sequence_divisor
    split = facts.split_width + facts.row_width + _states_per_token(facts)
    split_bytes = grid.value_bytes * split / grid.tensor_parallel
    return grid.tokens * (hidden_bytes + split_bytes + grid.value_bytes * facts.whole_width)


def _score_bytes(facts: LayerFacts, grid: Grid) -> SettingColumn:
    heads = sum(m.num_heads for m in facts.mixers if isinstance(m, Attention | LatentAttention))
    per_score = SCORES_KEPT * grid.value_bytes + MASK_BYTES
    return per_score * heads * grid.tokens * grid.seq_len / grid.tensor_parallel


def _states_per_token(facts: LayerFacts) -> float:
    return sum(state_values(m) / chunk_tokens(m) for m in facts.recurrent)
