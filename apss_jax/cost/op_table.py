"""Pipeline schedules as data: which op each stage runs in each slot, and whose message it awaits.

A stage runs its ops in a fixed order; a *slot* is a row of one op per stage in which every input
was produced in an earlier row. Slots are not times: they only order the ops for the simulator.
Virtual stage `chunk * num_stages + stage` holds one chunk of layers of a stage.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Pass(IntEnum):
    """What a stage does in a slot."""

    IDLE = 0
    FORWARD = 1
    BACKWARD = 2


class Order(NamedTuple):
    """The ops of every stage, in the second axis, in the order in which it runs them.

    One forward and one backward for each micro-batch and chunk.
    """

    kind: Int[np.ndarray, "stages _"]
    micro_batch: Int[np.ndarray, "stages _"]
    chunk: Int[np.ndarray, "stages _"]


class ScheduleTable(NamedTuple):
    """One schedule, ready for the simulator.

    Sizes are data, so tables that are padded to one shape share one compiled simulator.
    Rows `repeat_start` to `repeat_stop` stand for `num_repeats` further copies of themselves that
    follow `repeat_stop` (none in a table that is written out in full).
    """

    kind: Int[np.ndarray, "slots stages"]  # a `Pass`
    micro_batch: Int[np.ndarray, "slots stages"]
    chunk: Int[np.ndarray, "slots stages"]
    source_slot: Int[np.ndarray, "slots stages"]  # that sent the awaited message; -1: none awaited
    source_stage: Int[np.ndarray, "slots stages"]
    is_carried: Bool[np.ndarray, "_ stages"]  # messages under way at `repeat_stop`, by slot % rows
    num_stages: int
    num_chunks: int
    num_micro_batches: int  # the copies that are not written out included
    num_slots: int
    repeat_start: int
    repeat_stop: int
    num_repeats: int

    @property
    def history_slots(self) -> int:
        """How many of the latest slots' messages can still be awaited."""
        return self.is_carried.shape[0]


def table_from_order(order: Order, num_chunks: int) -> ScheduleTable:
    """Returns the table with every op in the earliest slot that its order and its input allow.

    Raises ValueError when an op is missing or repeated, or when the orders wait for each other.
    """
    from apss_jax.cost import table_kernels

    num_stages, num_ops = order.kind.shape
    num_micro_batches = num_ops // (2 * num_chunks)
    ops = np.stack(order).astype(np.int32, copy=False)
    room = np.empty(num_stages, np.int64), np.empty(order.kind.shape, np.int64)
    slot_of_id = np.empty(order.kind.size, np.int64)
    num_slots = table_kernels.NOT_A_STEP
    if num_ops == 2 * num_micro_batches * num_chunks:
        num_slots = table_kernels.fill_slots(ops, num_chunks, *room, slot_of_id)
    if num_slots < 0:
        raise ValueError(table_kernels.FAULTS[num_slots])
    rows = np.zeros((5, num_slots, num_stages), np.int32)
    rows[3:] = -1
    longest_wait = table_kernels.write_rows(ops, num_chunks, *room, slot_of_id, rows)
    kind, micro_batch, chunk, source_slot, source_stage = rows
    return ScheduleTable(
        kind=kind,
        micro_batch=micro_batch,
        chunk=chunk,
        source_slot=source_slot,
        source_stage=source_stage,
        is_carried=np.zeros((_power_of_two(longest_wait + 1), num_stages), bool),
        num_stages=num_stages,
        num_chunks=num_chunks,
        num_micro_batches=num_micro_batches,
        num_slots=num_slots,
        repeat_start=num_slots,
        repeat_stop=num_slots,
        num_repeats=0,
    )


def pad_table(table: ScheduleTable, num_slots: int, num_stages: int) -> ScheduleTable:
    """Returns the table with idle slots and stages added up to a shape.

    The history grows to at least twice the padded stages, which covers every known schedule, so
    that tables of one padded shape agree on it too. Raises ValueError when the table is larger.
    """
    slots, stages = table.kind.shape
    if slots > num_slots or stages > num_stages:
        raise ValueError(
            f"a table of {slots} x {stages} does not fit into {num_slots} x {num_stages}"
        )
    history = max(table.history_slots, _power_of_two(2 * num_stages))

    def padded(name: str, empty: int) -> Int[np.ndarray, "slots stages"]:
        wide = np.full((num_slots, num_stages), empty, np.int32)
        wide[:slots, :stages] = getattr(table, name)
        return wide

    return table._replace(
        kind=padded("kind", Pass.IDLE),
        micro_batch=padded("micro_batch", 0),
        chunk=padded("chunk", 0),
        source_slot=padded("source_slot", -1),
        source_stage=padded("source_stage", -1),
        is_carried=_carried(table, history, num_stages),
    )


def in_flight(table: ScheduleTable) -> Int[np.ndarray, "slots stages chunks"]:
    """Returns, after each slot, how many micro-batches are between forward and backward."""
    change = (table.kind == Pass.FORWARD).astype(np.int32) - (table.kind == Pass.BACKWARD)
    of_chunk = table.chunk[..., None] == np.arange(table.num_chunks)
    return np.cumsum(change[..., None] * of_chunk, axis=0)


def peak_in_flight(table: ScheduleTable) -> Int[np.ndarray, "stages chunks"]:
    """Returns the most micro-batches of each chunk whose activations a stage holds at once."""
    return in_flight(table).max(axis=0)


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def _carried(table: ScheduleTable, history: int, num_stages: int) -> Bool[np.ndarray, "_ stages"]:
    """Returns which messages sent before `repeat_stop` are awaited later, at any repetition."""
    is_carried = np.zeros((history, num_stages), bool)
    period = table.repeat_stop - table.repeat_start
    if not table.num_repeats:
        return is_carried
    slot = np.arange(table.repeat_start, table.num_slots)[:, None]
    source_slot = table.source_slot[table.repeat_start : table.num_slots]
    source_stage = table.source_stage[table.repeat_start : table.num_slots]
    from_start = np.where(slot < table.repeat_stop, table.repeat_start, table.repeat_stop)
    age = np.where(source_slot >= 0, from_start - source_slot, 0)
    while (age > 0).any():
        row = (table.repeat_stop - age[age > 0]) % history
        is_carried[row, source_stage[age > 0]] = True
        age = age - period
    return is_carried
