"""A model given as measured rows: their tables under settings that were not measured.

Rows have the time of one sample. How much of it is the host's, and so does not grow with the
micro-batch, is bounded from both sides: by what the stack says it launches, and by the memory
traffic that the row's outputs and kept activations must take on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from apss_jax.datasheet.grid import Grid
from apss_jax.datasheet.work import BACKWARD_PRODUCTS, Values, other_part, smooth_maximum
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.model import LayerTable, TableRow
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import COMM_KINDS, PASSES, Setting, UnitTable

RowTimes = Float[np.ndarray, "settings device_types units"]
RowValues = Float[np.ndarray, " units"]

# A pass writes what it keeps and hands on, and reads as much.
TRAFFIC_PASSES = 2.0
BRANCHES_PER_ROW = 2  # all-reduces of a row whose times leave them out: as in a layer
# Of a GPT layer's kept activations, what tensor parallelism alone leaves whole (arXiv 2205.05198,
# equation 2: 10 of 34 parts); rows do not say what they consist of.
WHOLE_SHARE = 10 / 34


def row_tables(
    table: LayerTable,
    cluster: ClusterProfile,
    stack: Stack,
    settings: Sequence[Setting],
    grid: Grid,
) -> list[UnitTable]:
    """Returns one table for each setting, without embedding and head; raises `InputError`."""
    _check_degrees(settings)
    types = cluster.used_types
    forward_s = _sample_times(table, types, settings, backward=False)
    backward_s = _sample_times(table, types, settings, backward=True)
    traffic_s = _traffic_s(table, cluster)
    forward = _scaled(forward_s, traffic_s, stack.cpu_forward_s, grid)
    host_s = BACKWARD_PRODUCTS * stack.cpu_forward_s
    backward = _scaled(backward_s, BACKWARD_PRODUCTS * traffic_s, host_s, grid)
    repeated = grid.recomputes_all[:, :, None] * forward
    is_measured = grid.micro_batch[:, :, None] == 1
    has_backward = np.array([row.backward_s is not None for row in table.rows])
    columns = {
        "compute_s": np.stack([forward, backward + repeated], axis=1),
        "measured_s": is_measured * (forward + repeated + has_backward * backward),
        **_comm(table, grid),
        **_memory(table, grid),
    }
    return [
        UnitTable(
            setting=setting,
            device_types=types,
            tied_parameters=0.0,
            has_ends=False,
            **{name: column[i] for name, column in columns.items()},
        )
        for i, setting in enumerate(settings)
    ]


def _check_degrees(settings: Sequence[Setting]) -> None:
    for setting in settings:
        for name in ("context_parallel", "expert_parallel"):
            degree = getattr(setting, name)
            if degree > 1:
                rule = "a model given as a table of layers was not measured with it"
                raise mistake(name, degree, rule, "Use 1")


def _sample_times(
    table: LayerTable, types: Sequence[str], settings: Sequence[Setting], *, backward: bool
) -> RowTimes:
    by_degree = {
        degree: [[_row_s(row, name, degree, backward) for row in table.rows] for name in types]
        for degree in {s.tensor_parallel for s in settings}
    }
    return np.array([by_degree[s.tensor_parallel] for s in settings], dtype=np.float64)


def _row_s(row: TableRow, device_type: str, tensor_parallel: int, backward: bool) -> float:
    if backward and row.backward_s is None:
        return BACKWARD_PRODUCTS * _row_s(row, device_type, tensor_parallel, False)
    key, times = ("backward_s", row.backward_s) if backward else ("forward_s", row.forward_s)
    found = (times or {}).get(device_type, {}).get(str(tensor_parallel))
    if found is None:
        raise _missing(row, f"{key}.{device_type}", tensor_parallel, times or {})
    return found


def _missing(
    row: TableRow, key: str, tensor_parallel: int, times: dict[str, dict[str, float]]
) -> InputError:
    known = {name: sorted(degrees, key=int) for name, degrees in times.items()}
    return mistake(
        f"table row {row.name!r}: {key}",
        known,
        f"it has no time for tensor degree {tensor_parallel}",
        "Measure the row there, or use the device types and degrees that it has",
    )


def _traffic_s(
    table: LayerTable, cluster: ClusterProfile
) -> Float[np.ndarray, "device_types units"]:
    """Returns what moving a row's bytes takes at least, for one sample."""
    moved_bytes = TRAFFIC_PASSES * (_values(table, "saved_bytes") + _values(table, "output_bytes"))
    devices = [cluster.device_types[name] for name in cluster.used_types]
    bytes_per_s = np.array([d.memory_bytes_per_s * d.rates.memory_fraction for d in devices])
    return moved_bytes / bytes_per_s[:, None]


def _scaled(
    sample_s: RowTimes,
    traffic_s: Float[np.ndarray, "device_types units"],
    host_s: float,
    grid: Grid,
) -> RowTimes:
    """Returns the time of a micro-batch: the device's part grows with it, the host's does not."""
    least_s = np.minimum(traffic_s / grid.tensor_parallel[:, :, None], sample_s)
    launch_s = np.minimum(host_s, other_part(sample_s, least_s))
    # The least again: beside a long launch it is too small for the difference to hold it.
    device_s = np.maximum(other_part(sample_s, launch_s), least_s)
    return smooth_maximum(grid.micro_batch[:, :, None] * device_s, launch_s)


def _comm(table: LayerTable, grid: Grid) -> dict[str, Values]:
    """Returns the tensor collectives where the rows' times leave them out."""
    tensor = COMM_KINDS.index("tensor")
    is_counted = (grid.tensor_parallel > 1) & (not table.tensor_comm_included)
    calls = np.zeros((len(is_counted), len(PASSES), len(COMM_KINDS), len(table.rows)))
    one_way = 2.0 * BRANCHES_PER_ROW * is_counted
    calls[:, 0, tensor] = one_way
    calls[:, 1, tensor] = one_way * (1.0 + grid.recomputes_all)
    output_bytes = grid.micro_batch * _values(table, "output_bytes")
    return {"comm_bytes": calls * output_bytes[:, None, None], "comm_calls": calls}


def _memory(table: LayerTable, grid: Grid) -> dict[str, Values]:
    tensor, micro_batch = grid.tensor_parallel, grid.micro_batch
    share = WHOLE_SHARE / grid.sequence_divisor + (1.0 - WHOLE_SHARE) / tensor
    everything = micro_batch * share * _values(table, "saved_bytes")
    output_bytes = micro_batch * _values(table, "output_bytes") / grid.sequence_divisor
    # What full recomputation keeps is a row's input; the first row's is taken to be its output.
    inputs = np.concatenate([output_bytes[:, :1], output_bytes[:, :-1]], axis=1)
    boundary = output_bytes.copy()
    boundary[:, -1] = 0.0
    zero = np.zeros_like(everything)
    return {
        "dense_parameters": _values(table, "num_parameters") / tensor,
        "expert_parameters": zero,
        "saved_bytes": np.where(grid.recomputes_all, np.minimum(inputs, everything), everything),
        "working_bytes": np.where(grid.recomputes_all, everything, zero),
        "boundary_bytes": boundary,
        # Rows do not say how many operations they are.
        "model_flops": np.full_like(everything, np.nan),
    }


def _values(table: LayerTable, name: str) -> RowValues:
    return np.array([getattr(row, name) for row in table.rows], dtype=np.float64)
