"""Token mixing beside its projections: softmax attention, gated delta net, state space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.matmul import TypeTimes
from apss_jax.datasheet.rates import Rates
from apss_jax.schema.layers import Attention, LatentAttention, LinearAttention, Mixer, StateSpace

# FlashAttention repeats the first product in its backward pass (arXiv 2205.14135): 5 for 2.
FLASH_BACKWARD = 2.5
PLAIN_BACKWARD = 2.0
ALIGNED_VALUES = 8  # of 16 bits: what matrix units read at once

# Tokens that the kernels of these mixers process as one block: the defaults of
# flash-linear-attention for the gated delta rule and of Mamba-2 (arXiv 2405.21060).
DELTA_CHUNK_TOKENS = 64
STATE_SPACE_CHUNK_TOKENS = 256


@dataclass(frozen=True)
class MixTimes:
    """What mixing tokens takes on the device, launches apart."""

    forward_s: TypeTimes
    backward_s: TypeTimes


def mixing_s(mixer: Mixer, grid: Grid, rates: Rates) -> MixTimes:
    """Returns the times of one device's share of heads and tokens."""
    if isinstance(mixer, Attention | LatentAttention):
        return _softmax_s(mixer, grid, rates)
    per_token = _chunked_flops(mixer)
    tokens = grid.tokens / grid.tensor_parallel
    forward_s = tokens * per_token / rates.score_flops_per_s
    return MixTimes(forward_s, PLAIN_BACKWARD * forward_s)


def mean_keys(mixer: Attention | LatentAttention, seq_len: SettingColumn) -> SettingColumn:
    """Returns how many keys a query attends to on average."""
    reach = longest_reach(mixer, seq_len)
    if isinstance(mixer, Attention) and not mixer.causal:
        return reach
    return reach - reach**2 / (2 * seq_len)


def longest_reach(mixer: Attention | LatentAttention, seq_len: SettingColumn) -> SettingColumn:
    """Returns how many keys a query may attend to, the causal mask apart."""
    window = mixer.window_tokens if isinstance(mixer, Attention) else None
    return np.minimum(seq_len, window) if window else seq_len


def mixing_flops(mixer: Mixer, seq_len: SettingColumn) -> SettingColumn:
    """Returns the operations per token of a forward pass, the causal half NOT taken off.

    The convention of most published utilisation figures (PaLM, arXiv 2204.02311, appendix B).
    """
    if isinstance(mixer, Attention | LatentAttention):
        return 4.0 * longest_reach(mixer, seq_len) * mixer.score_width
    per_token = 6.0 if isinstance(mixer, LinearAttention) else 4.0
    return np.full_like(seq_len, per_token * state_values(mixer))


def state_values(mixer: LinearAttention | StateSpace) -> int:
    """Returns the values of the state that one sequence carries."""
    if isinstance(mixer, LinearAttention):
        return mixer.num_value_heads * mixer.key_head_dim * mixer.value_head_dim
    return mixer.num_heads * mixer.head_dim * mixer.state_size


def chunk_tokens(mixer: LinearAttention | StateSpace) -> int:
    """Returns the tokens between two states that a forward pass keeps."""
    return DELTA_CHUNK_TOKENS if isinstance(mixer, LinearAttention) else STATE_SPACE_CHUNK_TOKENS


def _softmax_s(mixer: Attention | LatentAttention, grid: Grid, rates: Rates) -> MixTimes:
    tokens = grid.tokens / grid.tensor_parallel
    flops_per_key = 4.0 * tokens * mixer.score_width
    flash_s = flops_per_key * mean_keys(mixer, grid.seq_len) / rates.score_flops_per_s
    # Plain products compute every score and mask some away.
    is_aligned = mixer.key_size % ALIGNED_VALUES == 0
    rate = rates.score_flops_per_s if is_aligned else rates.unaligned_score_flops_per_s
    products_s = flops_per_key * grid.seq_len / rate
    score_bytes = grid.value_bytes * tokens * grid.seq_len * mixer.num_heads
    plain_s = products_s + rates.score_passes * score_bytes / rates.memory_bytes_per_s
    forward_s = np.where(rates.has_flash, flash_s, plain_s)
    return MixTimes(
        forward_s, forward_s * np.where(rates.has_flash, FLASH_BACKWARD, PLAIN_BACKWARD)
    )


def _chunked_flops(mixer: LinearAttention | StateSpace) -> float:
    """Returns the operations per token: products inside a chunk, then with the state.

    The delta rule multiplies the state three times (what a key would read, write, what the query
    reads) and has two score-like products more; a state space writes and reads it.
    """
    chunk = chunk_tokens(mixer)
    if isinstance(mixer, LinearAttention):
        inside = 4.0 * chunk * (mixer.key_head_dim + mixer.value_head_dim)
        return mixer.num_value_heads * inside + 6.0 * state_values(mixer)
    scores = 2.0 * chunk * mixer.state_size * mixer.num_groups
    applied = 2.0 * chunk * mixer.head_dim * mixer.num_heads
    return scores + applied + 4.0 * state_values(mixer)
