"""The traced form of model + cluster + batch: tables with prefix sums over the units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import UnitTable

Array = Any  # numpy on the host, traced inside `jit`
UNIT_SIZES = (32, 64, 128, 256, 512, 1024)  # padded counts: one compilation serves each
SETTING_SIZES = (64, 512, 4096)
TYPE_SIZES = (2, 4, 8, 16)


class Problem(NamedTuple):
    """What every strategy of one search shares. Prefix sums have a leading 0."""

    compute_s: Float[Array, "settings passes device_types offsets"]
    comm_bytes: Float[Array, "settings passes comm_kinds offsets"]
    comm_calls: Float[Array, "settings passes comm_kinds offsets"]
    dense_parameters: Float[Array, "settings offsets"]
    expert_parameters: Float[Array, "settings offsets"]
    saved_bytes: Float[Array, "settings offsets"]
    working_bytes: Float[Array, "settings units"]  # not summed: a stage needs its largest
    boundary_bytes: Float[Array, "settings units"]  # what leaves the unit
    tied_parameters: Float[Array, " settings"]
    memory_s_per_byte: Float[Array, " device_types"]
    weight_bytes: Float[Array, ""]
    gradient_bytes: Float[Array, ""]
    reduced_gradient_bytes: Float[Array, ""]
    optimizer_bytes: Float[Array, ""]
    gradient_exposed_fraction: Float[Array, ""]
    context_exposed_fraction: Float[Array, ""]
    transfer_blocking_fraction: Float[Array, ""]
    step_s: Float[Array, ""]
    reserved_bytes: Float[Array, ""]


def padded_size(size: int, sizes: Sequence[int]) -> int:
    """Returns the smallest listed size that holds `size`; beyond them, the next power of 2."""
    for candidate in sizes:
        if size <= candidate:
            return candidate
    return 1 << (size - 1).bit_length()


def build_problem(
    tables: Sequence[UnitTable],
    cluster: ClusterProfile,
    stack: Stack,
    weight_bytes: float,
) -> Problem:
    """Returns the padded arrays of one search; `tables[i]` becomes setting `i`."""
    units = padded_size(tables[0].num_units, UNIT_SIZES)
    settings = padded_size(len(tables), SETTING_SIZES)
    types = padded_size(len(tables[0].device_types), TYPE_SIZES)

    def stacked(name: str, *, prefix: bool) -> np.ndarray:
        rows = np.stack([getattr(table, name) for table in tables])
        if rows.ndim == 4 and name == "compute_s":
            rows = _pad(rows, 2, types)
        return _pad(_units(rows, units, prefix=prefix), 0, settings)

    kinds = [cluster.device_types[name] for name in tables[0].device_types]
    per_byte = [1 / (kind.memory_bytes_per_s * kind.rates.memory_fraction) for kind in kinds]
    return Problem(
        compute_s=stacked("compute_s", prefix=True),
        comm_bytes=stacked("comm_bytes", prefix=True),
        comm_calls=stacked("comm_calls", prefix=True),
        dense_parameters=stacked("dense_parameters", prefix=True),
        expert_parameters=stacked("expert_parameters", prefix=True),
        saved_bytes=stacked("saved_bytes", prefix=True),
        working_bytes=stacked("working_bytes", prefix=False),
        boundary_bytes=stacked("boundary_bytes", prefix=False),
        tied_parameters=_pad(_float([table.tied_parameters for table in tables]), 0, settings),
        memory_s_per_byte=_pad(_float(per_byte), 0, types),
        weight_bytes=_float(weight_bytes),
        gradient_bytes=_float(stack.gradient_bytes),
        reduced_gradient_bytes=_float(stack.reduced_gradient_bytes),
        optimizer_bytes=_float(stack.optimizer_bytes),
        gradient_exposed_fraction=_float(stack.gradient_exposed_fraction),
        context_exposed_fraction=_float(stack.context_exposed_fraction),
        transfer_blocking_fraction=_float(stack.transfer_blocking_fraction),
        step_s=_float(stack.step_s),
        reserved_bytes=_float(stack.reserved_bytes),
    )


def _float(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def _units(rows: np.ndarray, units: int, *, prefix: bool) -> np.ndarray:
    padded = _pad(rows, rows.ndim - 1, units)
    if not prefix:
        return padded.astype(np.float32)
    sums = np.cumsum(padded, axis=-1)
    return np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=-1).astype(np.float32)


def _pad(rows: np.ndarray, axis: int, size: int) -> np.ndarray:
    widths = [(0, 0)] * rows.ndim
    widths[axis] = (0, size - rows.shape[axis])
    return np.pad(rows, widths)
