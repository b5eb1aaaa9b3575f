"""Op tables against published facts, and what a table must refuse."""

import numpy as np
import pytest
from event_queue import Op, op_order

from apss_jax.cost.op_table import (
    Order,
    Pass,
    ScheduleTable,
    in_flight,
    pad_table,
    peak_in_flight,
    table_from_order,
)
from apss_jax.cost.schedule import (
    SCHEDULES,
    build_folded_table,
    build_table,
    gpipe,
    interleaved_1f1b,
    most_in_flight,
    one_f_one_b,
)

SIZES = [
    ("gpipe", 4, 6, 1),
    ("1f1b", 1, 3, 1),
    ("1f1b", 5, 3, 1),
    ("1f1b", 6, 16, 1),
    ("interleaved_1f1b", 2, 2, 2),
    ("interleaved_1f1b", 4, 12, 3),
]


def _ops(table: ScheduleTable, stage: int) -> list[Op]:
    letters = {Pass.FORWARD: "F", Pass.BACKWARD: "B"}
    columns = zip(
        table.kind[:, stage], table.micro_batch[:, stage], table.chunk[:, stage], strict=True
    )
    return [(letters[Pass(k)], int(m), int(c)) for k, m, c in columns if k]


@pytest.mark.parametrize(("name", "stages", "micro_batches", "chunks"), SIZES)
def test_stages_run_the_published_order(
    name: str, stages: int, micro_batches: int, chunks: int
) -> None:
    """Each column of a table is the order that the published rules give, written again."""
    table = build_table(name, stages, micro_batches, chunks)
    for stage in range(stages):
        expected = op_order(name, stage, stages, micro_batches, chunks)
        assert _ops(table, stage) == expected


@pytest.mark.parametrize(("name", "stages", "micro_batches", "chunks"), SIZES)
def test_inputs_come_from_earlier_slots(
    name: str, stages: int, micro_batches: int, chunks: int
) -> None:
    """The awaited message was sent earlier, for the same pass and micro-batch, from next door."""
    table = build_table(name, stages, micro_batches, chunks)
    slot, stage = np.nonzero(table.source_slot >= 0)
    source = table.source_slot[slot, stage], table.source_stage[slot, stage]
    assert (source[0] < slot).all()
    assert (table.kind[source] == table.kind[slot, stage]).all()
    assert (table.micro_batch[source] == table.micro_batch[slot, stage]).all()
    step = np.where(table.kind[slot, stage] == Pass.FORWARD, 1, -1)
    virtual = table.chunk * stages + np.arange(stages)
    assert (virtual[slot, stage] - virtual[source] == step).all()


def test_interleaved_warm_up_of_megatron() -> None:
    """4 stages, 8 micro-batches, 2 chunks: 10, 8, 6, 4 warm-up passes, then one forward more.

    Source: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py:
    (pipeline size - rank - 1) * 2 + (chunks - 1) * pipeline size.
    """
    table = interleaved_1f1b(4, 8, 2)
    first_backward = [[op[0] for op in _ops(table, stage)].index("B") for stage in range(4)]
    assert first_backward == [10 + 1, 8 + 1, 6 + 1, 4 + 1]


def test_interleaved_order_of_megatron() -> None:
    """Rounds of as many micro-batches as stages: chunk 0 of all, then chunk 1; backward reversed.

    Source: `get_schedule_table` in the same file: for 5 micro-batches, 2 chunks and rounds of 3 it
    lists (0,0) (1,0) (2,0) (0,1) (1,1) (2,1); here rounds of 2.
    """
    forward = [op[1:] for op in _ops(interleaved_1f1b(2, 4, 2), 0) if op[0] == "F"]
    assert forward == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    backward = [op[1:] for op in _ops(interleaved_1f1b(2, 4, 2), 1) if op[0] == "B"]
    assert backward == [(0, 1), (1, 1), (0, 0), (1, 0), (2, 1), (3, 1), (2, 0), (3, 0)]


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (4, 2), (4, 4), (8, 32)])
def test_one_f_one_b_in_flight(stages: int, micro_batches: int) -> None:
    """A stage of 1F1B holds min(micro-batches, stages - stage); Narayanan et al. 2021, section 2.2.

    "the number of in-flight microbatches is at most the number of pipeline stages".
    """
    held = peak_in_flight(one_f_one_b(stages, micro_batches))[:, 0]
    assert held.tolist() == [min(micro_batches, stages - s) for s in range(stages)]


def test_gpipe_holds_every_micro_batch() -> None:
    """All micro-batches of GPipe are in flight when the backward passes begin."""
    assert peak_in_flight(gpipe(4, 9)).tolist() == [[9], [9], [9], [9]]


def test_interleaved_in_flight_of_each_chunk() -> None:
    """2 stages, 4 micro-batches, 2 chunks, counted by hand.

    Stage 0 runs F00 F10 F01 F11 F20 B01 F30 B11: all four of chunk 0 before its first backward,
    two of chunk 1. Stage 1 runs F00 F10 F01 B01 F11 B11 F20 B00: three, and one.
    """
    assert peak_in_flight(interleaved_1f1b(2, 4, 2)).tolist() == [[4, 2], [3, 1]]


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 2), (4, 3)])
def test_interleaved_holds_its_warm_up_and_one(stages: int, chunks: int) -> None:
    """Over its chunks a stage holds at most the warm-up forward passes and the one that follows."""
    held = in_flight(interleaved_1f1b(stages, 8 * stages, chunks)).sum(axis=2).max(axis=0)
    warm_up = [2 * (stages - stage - 1) + (chunks - 1) * stages for stage in range(stages)]
    assert held.tolist() == [passes + 1 for passes in warm_up]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
def test_the_fullest_moment_is_that_of_the_full_table(name: str, rounds: int) -> None:
    """Found from a stage's own order, and from few rounds, it is what the table's slots say."""
    stages, chunks = 4, 3 if name == "interleaved_1f1b" else 1
    key = (name, stages, rounds * stages, chunks)
    held = in_flight(build_table(*key))
    fullest = held.sum(axis=2).argmax(axis=0)
    assert np.array_equal(most_in_flight(*key), held[fullest, np.arange(stages)])


def test_orders_that_wait_for_each_other_are_refused() -> None:
    """Stage 0 wants micro-batch 0 back before it sends 1; stage 1 wants both first: an error."""
    kind = np.array([[1, 2, 1, 2], [1, 1, 2, 2]])
    order = Order(kind, np.array([[0, 0, 1, 1], [0, 1, 0, 1]]), np.zeros((2, 4), int))
    with pytest.raises(ValueError, match="wait for each other"):
        table_from_order(order, num_chunks=1)


@pytest.mark.parametrize(
    ("micro_batch", "kind", "message"),
    [([0, 0, 0, 1], [1, 2, 1, 2], "one forward and one"), ([0, 0, 1, 1], [1, 2, 2, 1], "before")],
)
def test_orders_that_are_not_a_step_are_refused(
    micro_batch: list[int], kind: list[int], message: str
) -> None:
    """A repeated op, and a backward pass ahead of its forward pass, are errors."""
    order = Order(np.array([kind]), np.array([micro_batch]), np.zeros((1, 4), int))
    with pytest.raises(ValueError, match=message):
        table_from_order(order, num_chunks=1)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("interleaved_1f1b", (4, 6, 2), "not a multiple"),
        ("interleaved_1f1b", (4, 8, 1), "at least 2 chunks"),
        ("interleaved_1f1b", (1, 8, 2), "at least 2"),
        ("1f1b", (4, 8, 2), "use interleaved_1f1b"),
        ("gpipe", (4, 0, 1), "at least 1"),
    ],
)
def test_sizes_that_a_schedule_cannot_run_are_refused(
    name: str, sizes: tuple[int, int, int], message: str
) -> None:
    """The error says which rule of the schedule the sizes break."""
    with pytest.raises(ValueError, match=message):
        build_table(name, *sizes)


def _unfold(table: ScheduleTable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns kind, micro-batch and chunk with the repeated rows written out, one by one."""
    start, stop, repeats = table.repeat_start, table.repeat_stop, table.num_repeats
    round_size = table.num_stages
    rows = [(slot, 0) for slot in range(stop)]
    rows += [(slot, copy + 1) for copy in range(repeats) for slot in range(start, stop)]
    rows += [(slot, repeats) for slot in range(stop, table.num_slots)]
    slot, copy = np.array(rows).T
    micro_batch = table.micro_batch[slot] + copy[:, None] * round_size * (table.kind[slot] > 0)
    return table.kind[slot], micro_batch, table.chunk[slot]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("1f1b", (1, 9, 1)),
        ("1f1b", (3, 40, 1)),
        ("1f1b", (8, 83, 1)),
        ("interleaved_1f1b", (2, 30, 2)),
        ("interleaved_1f1b", (5, 60, 3)),
    ],
)
def test_folded_table_written_out_is_the_full_table(name: str, sizes: tuple[int, int, int]) -> None:
    """Repeating the repeated rows gives, op by op, the table of all micro-batches."""
    full, folded = build_table(name, *sizes), build_folded_table(name, *sizes)
    assert folded.num_repeats >= 3
    written_out = (full.kind, full.micro_batch, full.chunk)
    assert all(np.array_equal(*pair) for pair in zip(_unfold(folded), written_out, strict=True))


def test_gpipe_is_never_folded() -> None:
    """GPipe has no rows that repeat, so its folded table is the full one."""
    assert build_folded_table("gpipe", 2, 64).num_repeats == 0
    assert build_folded_table("gpipe", 2, 64).num_slots == build_table("gpipe", 2, 64).num_slots


def test_a_table_does_not_fit_into_a_smaller_shape() -> None:
    """Padding never cuts ops off."""
    with pytest.raises(ValueError, match="does not fit"):
        pad_table(one_f_one_b(4, 8), num_slots=10, num_stages=4)


@pytest.mark.parametrize("sizes", [("1f1b", 6, 40, 1), ("interleaved_1f1b", 4, 40, 3)])
def test_a_folded_table_holds_as_many_micro_batches(sizes: tuple[str, int, int, int]) -> None:
    """What is in flight at most does not depend on how the steady state is written."""
    folded, full = build_folded_table(*sizes), build_table(*sizes)
    assert folded.num_repeats > 0
    assert np.array_equal(peak_in_flight(folded), peak_in_flight(full))


@pytest.mark.parametrize("sizes", [("1f1b", 6, 40, 1), ("interleaved_1f1b", 4, 40, 3)])
def test_messages_under_way_at_the_fold_are_marked(sizes: tuple[str, int, int, int]) -> None:
    """In the full table, no op after the fold awaits an unmarked message from before it."""
    folded, full = build_folded_table(*sizes), build_table(*sizes)
    stop, history = folded.repeat_stop, folded.history_slots
    source_slot, source_stage = full.source_slot[stop:], full.source_stage[stop:]
    crosses = (source_slot >= 0) & (source_slot < stop)
    assert crosses.any()
    assert folded.is_carried[source_slot[crosses] % history, source_stage[crosses]].all()
    assert not folded.is_carried.all()
