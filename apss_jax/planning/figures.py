"""Unit tables of many settings reduced to the sums and extremes that bounds are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from apss_jax.schema.layout import RECOMPUTE, Layouts
from apss_jax.schema.tables import Setting, UnitTable

TablesFn = Callable[[Sequence[Setting]], list[UnitTable]]
"""Returns one table for each setting, in order."""

PerSetting = Float[np.ndarray, " settings"]
SETTING_COLUMNS = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "micro_batch",
    "recompute",
    "sequence_parallel",
    "pipelined",
)


@dataclass(frozen=True)
class Quantity:
    """Something that units hold: over all units, in one end, in inner units.

    `density` is the largest inner share of the quantity per inner share of compute time: a stage
    with a tenth of the inner layers' time holds at most `density` tenths of their quantity.
    """

    total: PerSetting
    end: PerSetting  # the larger of the embedding's and the head's; 0 for a table
    inner: PerSetting
    density: PerSetting

    @staticmethod
    def of(values: Float[np.ndarray, "settings units"], time_s: np.ndarray, ends: int) -> Quantity:
        """Returns the sums and extremes of one value per unit; `ends` units at either side."""
        inside = slice(ends, values.shape[1] - ends)
        inner = values[:, inside].sum(axis=1)
        outer = np.maximum(values[:, 0], values[:, -1]) if ends else np.zeros(len(values))
        busy = np.maximum(time_s[:, inside], 1e-30)
        dense = (values[:, inside] / busy).max(axis=1) * busy.sum(axis=1)
        return Quantity(values.sum(axis=1), outer, inner, dense / np.maximum(inner, 1e-30))


@dataclass(frozen=True)
class SettingFigures:
    """The figures of some settings; `kinds` are units with equal entries, with their number."""

    whole_s: Float[np.ndarray, "settings device_types"]  # all units, both passes, without comm
    largest_s: Float[np.ndarray, "settings device_types"]  # the longest unit
    comm_bytes: Float[np.ndarray, "settings comm_kinds"]  # all units, both passes
    comm_calls: Float[np.ndarray, "settings comm_kinds"]
    boundary_bytes: PerSetting  # the largest
    dense: Quantity
    expert: Quantity
    saved: Quantity
    tied: PerSetting
    working_bytes: PerSetting  # the largest
    kind_dense: Float[np.ndarray, "settings _"]
    kind_expert: Float[np.ndarray, "settings _"]
    kind_saved: Float[np.ndarray, "settings _"]
    kind_count: Float[np.ndarray, " _"]

    @staticmethod
    def of(tables: Sequence[UnitTable]) -> SettingFigures:
        """Returns the figures of tables, in their order."""
        ends = 1 if tables[0].has_ends else 0
        time_s = np.stack([table.compute_s.sum(axis=0) for table in tables])
        mean_s = time_s.mean(axis=1)
        dense, expert, saved = (
            np.stack([getattr(table, name) for table in tables])
            for name in ("dense_parameters", "expert_parameters", "saved_bytes")
        )
        first, count = _distinct_units(np.concatenate([dense, expert, saved]))
        return SettingFigures(
            whole_s=time_s.sum(axis=2),
            largest_s=time_s.max(axis=2),
            comm_bytes=np.stack([table.comm_bytes.sum(axis=(0, 2)) for table in tables]),
            comm_calls=np.stack([table.comm_calls.sum(axis=(0, 2)) for table in tables]),
            boundary_bytes=np.array([table.boundary_bytes.max() for table in tables]),
            dense=Quantity.of(dense, mean_s, ends),
            expert=Quantity.of(expert, mean_s, ends),
            saved=Quantity.of(saved, mean_s, ends),
            tied=np.array([table.tied_parameters for table in tables]),
            working_bytes=np.array([table.working_bytes.max() for table in tables]),
            kind_dense=dense[:, first],
            kind_expert=expert[:, first],
            kind_saved=saved[:, first],
            kind_count=count,
        )


def _distinct_units(
    values: Float[np.ndarray, "_ units"],
) -> tuple[Int[np.ndarray, " _"], Float[np.ndarray, " _"]]:
    """Returns the first unit of each kind, and how many units are of it."""
    _, first, count = np.unique(values, axis=1, return_index=True, return_counts=True)
    return first, count.astype(float)


def settings_of(
    layouts: Layouts, *, tells_pipelines: bool
) -> tuple[list[Setting], Int[np.ndarray, " batch"]]:
    """Returns the distinct settings of layouts, and the index of each layout's.

    Where a stack does not tell pipelines apart, one setting stands for layouts with and without.
    """
    key = np.zeros(len(layouts), dtype=np.int64)
    for name in SETTING_COLUMNS if tells_pipelines else SETTING_COLUMNS[:-1]:
        column = getattr(layouts, name).astype(np.int64)
        low = int(column.min(initial=0))
        key = key * (int(column.max(initial=0)) - low + 1) + column - low
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    columns = [getattr(layouts, name)[first].tolist() for name in SETTING_COLUMNS]
    distinct = [
        Setting(
            tensor_parallel=row[0],
            context_parallel=row[1],
            expert_parallel=row[2],
            micro_batch=row[3],
            recompute=RECOMPUTE[row[4]],
            sequence_parallel=bool(row[5]),
            pipelined=bool(row[6]),
        )
        for row in zip(*columns, strict=True)
    ]
    return distinct, index
