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
    num_stages, num_ops = order.kind.shape
    num_micro_batches = num_ops // (2 * num_chunks)
    op_id, input_id = _op_ids(order, num_micro_batches, num_chunks)
    op_slot = _earliest_slots(op_id, input_id)
    slot_of_id = np.full(op_id.size + 1, -1)  # the last one for "awaits none", -1
    slot_of_id[op_id] = op_slot

    num_slots = int(op_slot.max()) + 1
    stage = np.broadcast_to(np.arange(num_stages)[:, None], op_slot.shape)
    source_stage = np.where(input_id < 0, -1, input_id % num_stages)

    def rows(values: Int[np.ndarray, "stages _"], empty: int) -> Int[np.ndarray, "slots stages"]:
        table = np.full((num_slots, num_stages), empty, np.int32)
        table[op_slot, stage] = values
        return table

    source_slot = rows(slot_of_id[input_id], -1)
    longest_wait = int(
        (np.arange(num_slots)[:, None] - source_slot)[source_slot >= 0].max(initial=0)
    )
    return ScheduleTable(
        kind=rows(order.kind, Pass.IDLE),
        micro_batch=rows(order.micro_batch, 0),
        chunk=rows(order.chunk, 0),
        source_slot=source_slot,
        source_stage=rows(source_stage, -1),
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
    grow = ((0, num_slots - slots), (0, num_stages - stages))

    def padded(name: str, empty: int) -> Int[np.ndarray, "slots stages"]:
        return np.pad(getattr(table, name), grow, constant_values=empty)

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


def fullest_in_flight(order: Order, num_chunks: int) -> Int[np.ndarray, "stages chunks"]:
    """Returns the micro-batches of each chunk that a stage holds when it holds most chunks at all.

    Chunks reach their own peaks at different moments, so that peaks must not be added. What a stage
    holds depends on its own order alone, so that no table is needed.
    """
    stages, num_ops = order.kind.shape
    change = np.where(order.kind == Pass.FORWARD, 1, -1)
    fullest = np.cumsum(change, axis=1).argmax(axis=1)
    until = change * (np.arange(num_ops) <= fullest[:, None])
    cell = order.chunk + num_chunks * np.arange(stages)[:, None]
    held = np.bincount(cell.ravel(), until.ravel(), minlength=stages * num_chunks)
    return held.reshape(stages, num_chunks).astype(np.int64)


def peak_in_flight(table: ScheduleTable) -> Int[np.ndarray, "stages chunks"]:
    """Returns the most micro-batches of each chunk whose activations a stage holds at once."""
    return in_flight(table).max(axis=0)


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def _op_ids(
    order: Order, num_micro_batches: int, num_chunks: int
) -> tuple[Int[np.ndarray, "stages _"], Int[np.ndarray, "stages _"]]:
    """Returns a number for each op and for the op whose message it awaits (-1: none)."""
    num_stages, num_ops = order.kind.shape
    last = num_chunks * num_stages - 1
    virtual_stage = order.chunk * num_stages + np.arange(num_stages)[:, None]
    is_forward = order.kind == Pass.FORWARD
    op_id = ((order.kind - Pass.FORWARD) * num_micro_batches + order.micro_batch) * (
        last + 1
    ) + virtual_stage
    step = np.where(is_forward, -1, 1)
    awaits_none = np.where(is_forward, virtual_stage == 0, virtual_stage == last)
    expected = np.arange(2 * num_micro_batches * (last + 1))
    if (
        num_ops != 2 * num_micro_batches * num_chunks
        or order.chunk.max() >= num_chunks
        or not np.array_equal(np.sort(op_id, axis=None), expected)
    ):
        raise ValueError(
            "each stage must run one forward and one backward for each micro-batch and chunk"
        )
    _check_forward_first(order)
    return op_id, np.where(awaits_none, -1, op_id + step)


def _check_forward_first(order: Order) -> None:
    key = order.chunk * (order.micro_batch.max() + 1) + order.micro_batch
    by_op = np.lexsort((order.kind, key), axis=1)
    if (by_op[:, 0::2] > by_op[:, 1::2]).any():
        raise ValueError("a stage's order runs a backward pass before its forward pass")


def _earliest_slots(
    op_id: Int[np.ndarray, "stages _"], input_id: Int[np.ndarray, "stages _"]
) -> Int[np.ndarray, "stages _"]:
    num_stages, num_ops = op_id.shape
    never = op_id.size
    # Two more ids than ops: one that stages at the end of their order await in vain, and, at -1,
    # the absent message, which is there before the first slot.
    slot_of_id = np.full(op_id.size + 2, never)
    slot_of_id[-1] = -1
    awaited = np.full((num_stages, num_ops + 1), never)
    awaited[:, :-1] = input_id
    awaited, ids = awaited.ravel(), np.pad(op_id, ((0, 0), (0, 1))).ravel()
    heads = np.arange(num_stages) * (num_ops + 1)
    slot, remaining = 0, op_id.size
    while remaining:
        ready = (slot_of_id[awaited[heads]] < slot).nonzero()[0]
        if not ready.size:
            raise ValueError(f"the orders wait for each other after {slot} slots")
        slot_of_id[ids[heads[ready]]] = slot
        heads[ready] += 1
        remaining -= ready.size
        slot += 1
    return slot_of_id[op_id]


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
