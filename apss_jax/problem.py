"""The traced form of model + cluster + batch: tables with prefix sums over the units.

What every unit has is kept side by side, so that one look reads all figures of a stage's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import UnitTable

Array = Any  # numpy on the host, traced inside `jit`
UNIT_SIZES = (64, 128, 256, 512, 1024)  # padded counts: one compilation serves each
SETTING_SIZES = (512, 4096)
TYPE_SIZES = (2, 4, 8, 16)
GATHERED_UNITS = 2  # under ZeRO 3: the one at work and the next


class UnitSums(NamedTuple):
    """Sums over the units of each of many cells, which may be offsets, chunks or stages."""

    compute_s: Float[Array, "*cells passes device_types"]
    comm_bytes: Float[Array, "*cells passes comm_kinds"]
    comm_calls: Float[Array, "*cells passes comm_kinds"]
    parameters: Float[Array, "*cells parameter_kinds"]
    saved_bytes: Float[Array, "*cells"]

    @staticmethod
    def of_row(row: Float[Array, "*cells quantities"]) -> UnitSums:
        """Returns the figures that a row of `Problem.sums` has side by side."""
        cells = row.shape[:-1]
        comm = row[..., 3:_NUM_COMMON].reshape(*cells, 2, 2, 3)
        return UnitSums(
            compute_s=row[..., _NUM_COMMON:].reshape(*cells, 2, -1),
            comm_bytes=comm[..., 0, :],
            comm_calls=comm[..., 1, :],
            parameters=row[..., :2],
            saved_bytes=row[..., 2],
        )


# Two kinds of parameters, saved bytes; bytes and calls of three kinds of collectives, both passes.
_NUM_COMMON = 3 + 2 * 2 * 3


class Problem(NamedTuple):
    """What every strategy of one search shares."""

    sums: Float[Array, "settings offsets quantities"]  # of all units before: `UnitSums.of_row`
    working_bytes: Float[Array, "settings spans units"]  # [i, k, u]: most of 2^k units from u on
    boundary_bytes: Float[Array, "settings units"]  # what leaves the unit
    tied_parameters: Float[Array, " settings"]
    memory_s_per_byte: Float[Array, " device_types"]
    weight_bytes: Float[Array, ""]
    gradient_bytes: Float[Array, ""]
    reduced_gradient_bytes: Float[Array, ""]
    bucket_step_s_per_byte: Float[Array, ""]
    optimizer_bytes: Float[Array, ""]
    owner_step_s: Float[Array, ""]
    exposed_fractions: Float[Array, " zero_stages"]
    context_exposed_fraction: Float[Array, ""]
    transfer_blocking_fraction: Float[Array, ""]
    transfer_latency_s: Float[Array, ""]
    collective_latency_s: Float[Array, ""]
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

    kinds = [cluster.device_types[name] for name in tables[0].device_types]
    per_byte = [1 / (kind.memory_bytes_per_s * kind.rates.memory_fraction) for kind in kinds]
    return Problem(
        sums=_pad(_sums(tables, units, types), 0, settings),
        working_bytes=_pad(_largest(_stacked(tables, "working_bytes", units)), 0, settings),
        boundary_bytes=_pad(_stacked(tables, "boundary_bytes", units), 0, settings),
        tied_parameters=_pad(_float([table.tied_parameters for table in tables]), 0, settings),
        memory_s_per_byte=_pad(_float(per_byte), 0, types),
        weight_bytes=_float(weight_bytes),
        gradient_bytes=_float(stack.gradient_bytes_of(weight_bytes)),
        reduced_gradient_bytes=_float(stack.reduced_gradient_bytes),
        bucket_step_s_per_byte=_float(stack.bucket_step_s_per_byte),
        optimizer_bytes=_float(stack.optimizer_bytes_of(weight_bytes)),
        owner_step_s=_float(stack.owner_step_s),
        exposed_fractions=_float(stack.exposed_fractions),
        context_exposed_fraction=_float(stack.context_exposed_fraction),
        transfer_blocking_fraction=_float(stack.transfer_blocking_fraction),
        transfer_latency_s=_float(stack.transfer_latency_s),
        collective_latency_s=_float(stack.collective_latency_s),
        step_s=_float(stack.step_s),
        reserved_bytes=_float(stack.reserved_bytes),
    )


def _float(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def _stacked(tables: Sequence[UnitTable], name: str, units: int) -> np.ndarray:
    rows = np.stack([getattr(table, name) for table in tables])
    return _pad(rows, rows.ndim - 1, units).astype(np.float32)


def _sums(
    tables: Sequence[UnitTable], units: int, types: int
) -> Float[np.ndarray, "settings offsets quantities"]:
    """Returns sums over all units before each offset, padded units being nothing."""
    rows = _pad(np.stack([_row(table, types) for table in tables]), 2, units)
    sums = np.cumsum(rows, axis=2)
    before = np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=2)
    return before.swapaxes(1, 2).astype(np.float32)


def _row(table: UnitTable, types: int) -> Float[np.ndarray, "quantities units"]:
    """Returns the figures of each unit in the order of `UnitSums.of_row`."""
    held = np.stack([table.dense_parameters, table.expert_parameters, table.saved_bytes])
    comm = np.stack([table.comm_bytes, table.comm_calls], axis=1)
    compute_s = _pad(table.compute_s, 1, types)
    size = table.num_units
    return np.concatenate([held, comm.reshape(-1, size), compute_s.reshape(-1, size)])


def _largest(values: Float[np.ndarray, "settings units"]) -> np.ndarray:
    """Returns the largest of 1, 2, 4, ... neighbours, the unit itself the first of them."""
    levels = [values]
    while 2 ** len(levels) <= values.shape[1]:
        half = 2 ** (len(levels) - 1)
        ahead = _pad(levels[-1][:, half:], 1, values.shape[1])
        levels.append(np.maximum(levels[-1], ahead))
    return np.stack(levels, axis=1)


def _pad(rows: np.ndarray, axis: int, size: int) -> np.ndarray:
    widths = [(0, 0)] * rows.ndim
    widths[axis] = (0, size - rows.shape[axis])
    return np.pad(rows, widths)
