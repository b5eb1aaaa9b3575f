"""Parameters that one device holds of each unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.schema.weights import Weight

# Megatron-LM pads the vocabulary so that each rank's share is a multiple of this
# (--make-vocab-size-divisible-by); what is held may exceed what the model trains.
VOCABULARY_MULTIPLE = 128


@dataclass(frozen=True)
class Held:
    """Parameters on one device."""

    dense: SettingColumn
    expert: SettingColumn

    def plus(self, other: Held) -> Held:
        """Returns both together."""
        return Held(self.dense + other.dense, self.expert + other.expert)

    def times(self, factor: int) -> Held:
        """Returns that many copies."""
        return Held(self.dense * factor, self.expert * factor)


def held(weights: Iterable[Weight], grid: Grid) -> Held:
    """Returns what tensor and expert ranks leave on one device; undivided weights are whole."""
    split: dict[bool, int] = {False: 0, True: 0}
    whole: dict[bool, int] = {False: 0, True: 0}
    for weight in weights:
        kept = whole if weight.shard == "replicated" else split
        kept[weight.is_expert] += weight.num_parameters
    per_device = {e: split[e] / grid.tensor_parallel + whole[e] for e in (False, True)}
    return Held(dense=per_device[False], expert=per_device[True] / grid.expert_parallel)


def held_ends(weights: Iterable[Weight], vocab_size: int, grid: Grid) -> Held:
    """Returns the same for an embedding or a head, whose vocabulary is padded."""
    total = Held(np.zeros_like(grid.tokens), np.zeros_like(grid.tokens))
    extra = padded_vocab(vocab_size, grid) / vocab_size
    for weight in weights:
        one = held([weight], grid)
        is_padded = vocab_size in (weight.in_features, weight.out_features)
        is_padded = is_padded and weight.shard != "replicated"
        total = total.plus(Held(one.dense * (extra if is_padded else 1.0), one.expert))
    return total


def padded_vocab(vocab_size: int, grid: Grid) -> SettingColumn:
    """Returns the rows of the token table over all tensor ranks."""
    multiple = VOCABULARY_MULTIPLE * grid.tensor_parallel
    return np.ceil(vocab_size / multiple) * multiple
