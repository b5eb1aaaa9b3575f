"""Settings as columns, so that one formula costs all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from apss_jax.schema.cluster import FULL, LayerMeasurement, Precision
from apss_jax.schema.tables import Setting

SettingColumn = Float[np.ndarray, "settings 1"]
"""One figure for each setting; the second axis broadcasts over device types."""

SettingFlags = Bool[np.ndarray, "settings 1"]
"""A condition on each setting."""


def value_bytes(precision: Precision) -> int:
    """Returns the bytes of one activation; FP8 products read and write 16-bit activations."""
    return 4 if precision in FULL else 2


@dataclass(frozen=True)
class Grid:
    """Settings and sequence lengths, one row each."""

    tensor_parallel: SettingColumn
    context_parallel: SettingColumn
    expert_parallel: SettingColumn
    micro_batch: SettingColumn
    seq_len: SettingColumn
    recomputes_all: SettingFlags
    recomputes_scores: SettingFlags
    sequence_divisor: SettingColumn  # tensor degree where sequence parallelism is on, else 1
    pipelined_ranks: SettingColumn  # tensor degree where it is part of a pipeline, else 0
    value_bytes: int

    @property
    def tokens(self) -> SettingColumn:
        """Returns the tokens of one micro-batch on one device."""
        return self.micro_batch * self.seq_len / self.context_parallel

    @property
    def all_tokens(self) -> SettingColumn:
        """Returns the tokens of one micro-batch over all context ranks."""
        return self.micro_batch * self.seq_len

    def with_sequence(self, seq_len: int) -> Grid:
        """Returns the grid of a tower, whose own sequence no context rank divides."""
        ones = np.ones_like(self.seq_len)
        fields = {**self.__dict__, "seq_len": seq_len * ones, "context_parallel": ones}
        return Grid(**fields)


def grid_of(settings: Sequence[Setting], seq_len: int, precision: Precision) -> Grid:
    """Returns the columns of settings that share a sequence length."""
    tensor = _column([s.tensor_parallel for s in settings])
    is_sharded = _flags([s.sequence_parallel for s in settings])
    return Grid(
        tensor_parallel=tensor,
        context_parallel=_column([s.context_parallel for s in settings]),
        expert_parallel=_column([s.expert_parallel for s in settings]),
        micro_batch=_column([s.micro_batch for s in settings]),
        seq_len=np.full_like(tensor, seq_len),
        recomputes_all=_flags([s.recompute == "full" for s in settings]),
        recomputes_scores=_flags([s.recompute == "selective" for s in settings]),
        sequence_divisor=np.where(is_sharded, tensor, 1.0),
        pipelined_ranks=np.where(_flags([s.pipelined for s in settings]), tensor, 0.0),
        value_bytes=value_bytes(precision),
    )


def measured_grid(rows: Sequence[LayerMeasurement], precision: Precision) -> Grid:
    """Returns the columns under which measurements ran: one context and expert rank."""
    ones = np.ones((len(rows), 1))
    return Grid(
        tensor_parallel=_column([r.tensor_parallel for r in rows]),
        context_parallel=ones,
        expert_parallel=ones,
        micro_batch=_column([r.micro_batch for r in rows]),
        seq_len=_column([r.seq_len for r in rows]),
        recomputes_all=_flags([r.recompute == "full" for r in rows]),
        recomputes_scores=_flags([r.recompute == "selective" for r in rows]),
        sequence_divisor=ones,
        pipelined_ranks=np.zeros_like(ones),
        value_bytes=value_bytes(precision),
    )


def _column(values: Sequence[int]) -> SettingColumn:
    return np.asarray(values, dtype=np.float64)[:, None]


def _flags(values: Sequence[bool]) -> SettingFlags:
    return np.asarray(values, dtype=bool)[:, None]
