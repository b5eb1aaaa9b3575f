"""A pipeline as compiled code reads it: prefix sums, places of the pieces, rows of the schedule.

The kernels are imported, and numba with them, at the first call, so that importing is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from apss_jax.cost.op_table import Pass, ScheduleTable
from apss_jax.cost.schedule import build_folded_table


@dataclass(frozen=True, eq=False)
class Schedule:
    """The ops of every row of a schedule; without rows it is 1F1B."""

    sizes: Int64[np.ndarray, "_"]
    ops: Int64[np.ndarray, "_ _"]
    op_rows: Int64[np.ndarray, "_"]
    carried: Int64[np.ndarray, "_ stages"]
    history_slots: int
    num_stages: int

    @property
    def num_slots(self) -> int:
        """How many slots may be run, if no round repeats the one before."""
        micro_batches, rows, start, stop, repeats = self.sizes.tolist()
        return rows + repeats * (stop - start) if rows else 2 * (micro_batches + self.num_stages)

    @staticmethod
    @lru_cache(maxsize=256)
    def of(num_stages: int, num_micro_batches: int, num_chunks: int) -> Schedule:
        """Returns 1F1B for one chunk, interleaved 1F1B for more."""
        if num_chunks == 1:
            return _without_rows(num_stages, num_micro_batches)
        table = build_folded_table("interleaved_1f1b", num_stages, num_micro_batches, num_chunks)
        return _with_rows(table)


@dataclass(frozen=True, eq=False)
class Flow:
    """The tables of one problem and its schedule, in the order of the kernels' arguments."""

    sums: Float64[np.ndarray, "passes _ offsets"]
    """Forward, backward and tail over all layers before, for each row of costs."""
    sent: Float64[np.ndarray, "_ offsets"]
    """One message for each link, by where it is cut."""
    held: Float64[np.ndarray, "2 offsets"]
    """States, and what is saved for a micro-batch, of all layers before."""
    places: Int64[np.ndarray, "3 pieces"]
    """Of each piece: its row of costs, its link to the next piece, its micro-batches in flight."""
    allowed_bytes: Float64[np.ndarray, "stages"]
    """What a stage may hold, rounding included."""
    schedule: Schedule
    blocking_fraction: float = 0.0

    @property
    def num_pieces(self) -> int:
        """The number of pieces."""
        return int(self.places.shape[1])

    def steps_s(self, offsets: Int64[np.ndarray, "batch offsets"]) -> Float64[np.ndarray, "batch"]:
        """Returns the time of one step for each row of offsets."""
        from apss_jax.partitioning import flow_kernels

        found_s = np.empty(len(offsets))
        offsets = np.ascontiguousarray(offsets, np.int64)
        flow_kernels.simulate(
            *(flow_kernels.step_s, *self.arguments(), offsets, self.room(), found_s)
        )
        return found_s

    def arguments(self) -> tuple[Any, ...]:
        """Returns what every kernel takes first: the problem, its schedule, the blocking share."""
        own = self.schedule
        problem = (self.sums, self.sent, self.held, self.places, self.allowed_bytes)
        return problem, (own.sizes, own.ops, own.op_rows, own.carried), self.blocking_fraction

    def room(self) -> tuple[Any, ...]:
        """Returns the arrays that the simulator works in, in the order of the kernels' `ROOM`."""
        from apss_jax.partitioning import flow_kernels, path_kernels

        stages = self.schedule.num_stages
        return (
            np.empty((flow_kernels.NUM_PIECE_ROWS, self.num_pieces)),
            np.empty((flow_kernels.NUM_WORK_ROWS, self.num_pieces + 1)),
            np.empty((2, self.schedule.history_slots, stages)),
            np.zeros((self.schedule.num_slots, stages), np.int32),
            np.zeros(flow_kernels.NUM_MARKS, np.int64),
            np.empty((path_kernels.MOST_PATHS, path_kernels.NUM_PATH_ROWS, self.num_pieces)),
        )


def prefix_sums(values: Float64[np.ndarray, "..."]) -> Any:
    """Returns the sums of all entries before each place of the last axis, and of all of them."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def _without_rows(num_stages: int, num_micro_batches: int) -> Schedule:
    return Schedule(
        sizes=np.array([num_micro_batches, 0, 0, 0, 0], np.int64),
        ops=np.zeros((0, 5), np.int64),
        op_rows=np.zeros(1, np.int64),
        carried=np.zeros((0, num_stages), np.int64),
        history_slots=1,
        num_stages=num_stages,
    )


def _with_rows(table: ScheduleTable) -> Schedule:
    """Returns the ops of a table row by row, idle places left out."""
    slot, stage = np.nonzero(table.kind != Pass.IDLE)
    source = table.source_slot[slot, stage]
    piece = table.chunk[slot, stage] * table.num_stages + stage
    is_forward = table.kind[slot, stage] == Pass.FORWARD
    age = np.where(source >= 0, slot - source, 0)
    ops = np.stack([stage, piece, is_forward, age, table.source_stage[slot, stage]], axis=1)
    starts = np.concatenate([[0], np.cumsum(np.bincount(slot, minlength=table.num_slots))])
    sizes = (table.num_micro_batches, table.num_slots, table.repeat_start, table.repeat_stop)
    ages = np.arange(1, table.history_slots + 1)
    return Schedule(
        sizes=np.array([*sizes, table.num_repeats], np.int64),
        ops=np.ascontiguousarray(ops, np.int64),
        op_rows=starts.astype(np.int64),
        carried=table.is_carried[(table.repeat_stop - ages) % table.history_slots].astype(np.int64),
        history_slots=table.history_slots,
        num_stages=table.num_stages,
    )
