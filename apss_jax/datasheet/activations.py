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
from apss_jax.datasheet.rates import Rates
from apss_jax.schema.layers import Attention, LatentAttention

MASK_BYTES = 1  # a dropout mask, per value
# A branch keeps the input of its norm and of its first product.
HIDDEN_PER_PART = 2
# An unfused norm keeps its input in FP32 and the normalised value.
UNFUSED_NORM_BYTES = 6
# Tokens in the order of the experts, before them and after them.
ROUTED_KEPT = 2
# Sequence parallelism gathers a product's input, and beside it the gradient of that input.
GATHERED_INPUTS = 2
# torchtitan's selective recomputation keeps the outputs of every second product
# (torchtitan/parallelisms/parallelize_llama.py, `mm_count % 2`), and attention's.
PRODUCTS_KEPT = 0.5


@dataclass(frozen=True)
class Kept:
    """Activation bytes of one layer for one micro-batch on one device."""

    saved_bytes: SettingColumn
    working_bytes: SettingColumn


def kept(facts: LayerFacts, grid: Grid, rates: Rates, *, flash: bool) -> Kept:
    """Returns what is kept, and what recomputation and gathering hold for a moment."""
    scores = _score_bytes(facts, grid, dropout=rates.dropout) * (0.0 if flash else 1.0)
    everything = _linear_bytes(facts, grid, rates) + scores
    inputs = grid.value_bytes * grid.tokens * facts.hidden_size / grid.sequence_divisor
    chosen = everything - scores
    if rates.keeps_second_products:
        chosen = inputs + _second_product_bytes(facts, grid)
    again = everything - (0.0 if rates.keeps_second_products else chosen)
    saved = np.where(grid.recomputes_scores, chosen, everything)
    working = np.where(grid.recomputes_scores, again, 0.0)
    return Kept(
        saved_bytes=np.where(grid.recomputes_all, inputs, saved),
        working_bytes=np.where(grid.recomputes_all, everything, working)
        + _gathered_bytes(facts, grid),
    )


def _linear_bytes(facts: LayerFacts, grid: Grid, rates: Rates) -> SettingColumn:
    per_part = HIDDEN_PER_PART * grid.value_bytes + (MASK_BYTES if rates.dropout else 0)
    extra_norms = max(0, facts.num_norms - facts.num_parts)
    per_norm = 0 if rates.fused_norm else UNFUSED_NORM_BYTES
    hidden = per_part * facts.num_parts + per_norm * facts.num_norms
    hidden += grid.value_bytes * extra_norms
    routed_bytes = ROUTED_KEPT * grid.value_bytes * facts.routed_width
    hidden_bytes = (hidden * facts.hidden_size + routed_bytes) / grid.sequence_divisor
    split = facts.split_width + facts.row_width + _states_per_token(facts)
    split_bytes = grid.value_bytes * split / grid.tensor_parallel
    return grid.tokens * (hidden_bytes + split_bytes + grid.value_bytes * facts.whole_width)


def _score_bytes(facts: LayerFacts, grid: Grid, *, dropout: bool) -> SettingColumn:
    """Returns the outputs of the softmax, and with dropout its mask and its outputs."""
    heads = sum(m.num_heads for m in facts.mixers if isinstance(m, Attention | LatentAttention))
    per_score = grid.value_bytes + (MASK_BYTES + grid.value_bytes if dropout else 0)
    return per_score * heads * grid.tokens * grid.seq_len / grid.tensor_parallel


def _second_product_bytes(facts: LayerFacts, grid: Grid) -> SettingColumn:
    """Returns what mixers put out, and every second one of the products' outputs."""
    mixed = sum(m.num_heads * m.head_dim for m in facts.mixers if isinstance(m, Attention))
    split = (PRODUCTS_KEPT * facts.split_width + mixed) / grid.tensor_parallel
    rows = sum(p.output_width for p in facts.products if p.shard == "row") / grid.sequence_divisor
    whole = PRODUCTS_KEPT * (rows + facts.whole_width)
    return grid.value_bytes * grid.tokens * (split + whole)


def _gathered_bytes(facts: LayerFacts, grid: Grid) -> SettingColumn:
    """Returns whole inputs of products where each rank keeps a part of the sequence."""
    absent = 1.0 - 1.0 / grid.sequence_divisor
    return GATHERED_INPUTS * grid.value_bytes * grid.tokens * facts.hidden_size * absent


def _states_per_token(facts: LayerFacts) -> float:
    return sum(state_values(m) / chunk_tokens(m) for m in facts.recurrent)
