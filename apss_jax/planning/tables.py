"""Unit tables of the settings that a search meets, as one traced problem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from apss_jax.planning.inputs import Inputs
from apss_jax.problem import Problem, build_problem
from apss_jax.schema.cluster import FULL
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import Setting, UnitTable
from apss_jax.schema.workload import Workload

FULL_PRECISION_BYTES = 4.0
HALF_PRECISION_BYTES = 2.0


@dataclass(frozen=True, eq=False)
class CostTables:
    """The tables of some settings: by setting for the host, as arrays for the cost model."""

    by_setting: dict[Setting, UnitTable]
    index: dict[Setting, int]
    problem: Problem

    @property
    def num_units(self) -> int:
        """Returns what a pipeline may be cut into."""
        return next(iter(self.by_setting.values())).num_units


def cost_tables(inputs: Inputs, settings: Iterable[Setting]) -> CostTables:
    """Returns the tables of the distinct settings among those given."""
    asked = list(dict.fromkeys(settings))
    costed = [_costed(setting, inputs.stack) for setting in asked]
    distinct = {setting: i for i, setting in enumerate(dict.fromkeys(costed))}
    tables = inputs.unit_tables.tables(list(distinct))
    problem = build_problem(tables, inputs.cluster, inputs.stack, weight_bytes_of(inputs.workload))
    index = {setting: distinct[one] for setting, one in zip(asked, costed, strict=True)}
    by_setting = {setting: tables[i] for setting, i in index.items()}
    return CostTables(by_setting=by_setting, index=index, problem=problem)


def _costed(setting: Setting, stack: Stack) -> Setting:
    """Returns the setting that costs the same: one for all where pipelines make no difference."""
    if stack.tells_pipelines or not setting.pipelined:
        return setting
    return replace(setting, pipelined=False)


def weight_bytes_of(workload: Workload) -> float:
    """Returns the bytes of a parameter as the forward pass reads it; FP8 keeps 16-bit weights."""
    return FULL_PRECISION_BYTES if workload.precision in FULL else HALF_PRECISION_BYTES


def total_flops(table: UnitTable, num_micro_batches: int, data_parallel: int) -> float:
    """Returns the model FLOPs of one step over all replicas (no recomputation counted)."""
    return float(np.sum(table.model_flops)) * num_micro_batches * data_parallel
