"""The pipeline schedules by name, as op tables. To add one, add its order to `SCHEDULES`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int

from apss_jax.cost.op_table import (
    Order,
    Pass,
    ScheduleTable,
    fullest_in_flight,
    pad_table,
    table_from_order,
)

OrderFn = Callable[[int, int, int], Order]
RuleFn = Callable[[int, int, int], str | None]

# Slots before the repeated rows must outlast the start-up. Four passes of the pipeline leave two
# to settle in; plans that settle later are simulated in full.
_FOLDED_DEPTHS = 4


@dataclass(frozen=True)
class Schedule:
    """A named schedule: its order of ops and what it asks of (stages, micro-batches, chunks)."""

    order: OrderFn
    violation: RuleFn


def gpipe(num_stages: int, num_micro_batches: int) -> ScheduleTable:
    """Returns the table of GPipe: all forward passes, then all backward passes.

    Backward in the order of the forward passes, as in Narayanan et al. 2021 (arXiv:2104.04473),
    figure 3.
    """
    return build_table("gpipe", num_stages, num_micro_batches)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> ScheduleTable:
    """Returns the table of 1F1B (PipeDream-Flush): Narayanan et al. 2021, figure 4 top."""
    return build_table("1f1b", num_stages, num_micro_batches)


def interleaved_1f1b(num_stages: int, num_micro_batches: int, num_chunks: int) -> ScheduleTable:
    """Returns the table of Megatron-LM's interleaved 1F1B: Narayanan et al. 2021, figure 4 bottom.

    Raises ValueError unless the micro-batches are a multiple of the stages.
    """
    return build_table("interleaved_1f1b", num_stages, num_micro_batches, num_chunks)


@lru_cache(maxsize=512)
def build_table(
    name: str, num_stages: int, num_micro_batches: int, num_chunks: int = 1
) -> ScheduleTable:
    """Returns the table of a named schedule, written out in full.

    Raises ValueError when the schedule cannot run with these sizes.
    """
    schedule = SCHEDULES[name]
    violation = schedule.violation(num_stages, num_micro_batches, num_chunks)
    if violation:
        raise ValueError(f"{name}: {violation}")
    return table_from_order(schedule.order(num_stages, num_micro_batches, num_chunks), num_chunks)


@lru_cache(maxsize=512)
def build_folded_table(
    name: str, num_stages: int, num_micro_batches: int, num_chunks: int = 1
) -> ScheduleTable:
    """Returns the table of a named schedule with its steady state written out once.

    The rows that one more round of `num_stages` micro-batches adds are found by comparing two
    short tables. A schedule without such rows (GPipe), or with few micro-batches, comes in full.
    """
    rounds = num_micro_batches // num_stages - _FOLDED_DEPTHS
    if rounds < 1:
        return build_table(name, num_stages, num_micro_batches, num_chunks)
    short = build_table(name, num_stages, num_micro_batches - rounds * num_stages, num_chunks)
    longer = build_table(
        name, num_stages, num_micro_batches - (rounds - 1) * num_stages, num_chunks
    )
    stop = _repeat_stop(short, longer, num_stages)
    if stop is None:
        return build_table(name, num_stages, num_micro_batches, num_chunks)
    folded = short._replace(
        num_micro_batches=num_micro_batches,
        repeat_start=stop - (longer.num_slots - short.num_slots),
        repeat_stop=stop,
        num_repeats=rounds,
    )
    return pad_table(folded, *folded.kind.shape)


@lru_cache(maxsize=4096)
def most_in_flight(
    name: str, num_stages: int, num_micro_batches: int, num_chunks: int = 1
) -> Int[np.ndarray, "stages chunks"]:
    """Returns what each stage holds of each chunk when it holds most: see `fullest_in_flight`.

    Where one more round of `num_stages` micro-batches changes nothing, no further one does.
    """

    def held(count: int) -> Int[np.ndarray, "stages chunks"]:
        return fullest_in_flight(SCHEDULES[name].order(num_stages, count, num_chunks), num_chunks)

    rounds = num_micro_batches // num_stages - _FOLDED_DEPTHS
    if rounds >= 1:
        short = num_micro_batches - rounds * num_stages
        if np.array_equal(found := held(short), held(short + num_stages)):
            return found
    return held(num_micro_batches)


def _repeat_stop(short: ScheduleTable, longer: ScheduleTable, round_size: int) -> int | None:
    """Returns the latest slot at which a copy of the rows before it makes `longer` of `short`."""
    period = longer.num_slots - short.num_slots
    same = _matching_rows(short, longer, 0, 0)
    stop = len(same) if same.all() else int(np.argmin(same))
    if stop < period:
        return None
    after = _matching_rows(short, longer, period, round_size)
    return stop if after[stop - period :].all() else None


def _matching_rows(
    short: ScheduleTable, longer: ScheduleTable, slot_shift: int, micro_batch_shift: int
) -> Bool[np.ndarray, "slots"]:
    """Returns whether each row of `short` is the row of `longer` that the shifts lead to."""
    rows = slice(slot_shift, slot_shift + short.num_slots)
    is_busy = short.kind != Pass.IDLE
    awaits = short.source_slot >= 0
    same = (
        (longer.kind[rows] == short.kind)
        & (longer.chunk[rows] == short.chunk)
        & (longer.micro_batch[rows] == short.micro_batch + micro_batch_shift * is_busy)
        & (longer.source_stage[rows] == short.source_stage)
        & (longer.source_slot[rows] == short.source_slot + slot_shift * awaits)
    )
    return same.all(axis=1)


def _forwards_then_alternating(
    warm_up: Int[np.ndarray, "stages"], num_passes: int
) -> tuple[Int[np.ndarray, "stages _"], Int[np.ndarray, "stages _"]]:
    """Returns kind and running number of each op.

    `warm_up` forward passes, then forward and backward in turn, then the backward passes left.
    """
    number = np.arange(num_passes)
    ahead = np.minimum(warm_up, num_passes)[:, None]
    forward_at = np.where(number < ahead, number, 2 * number - ahead)
    backward_at = np.where(number < num_passes - ahead, ahead + 2 * number + 1, num_passes + number)
    kind = np.full((len(warm_up), 2 * num_passes), int(Pass.FORWARD))
    np.put_along_axis(kind, backward_at, int(Pass.BACKWARD), axis=1)
    numbers = np.empty_like(kind)
    np.put_along_axis(numbers, forward_at, np.broadcast_to(number, forward_at.shape), axis=1)
    np.put_along_axis(numbers, backward_at, np.broadcast_to(number, forward_at.shape), axis=1)
    return kind, numbers


def _plain_order(warm_up: Int[np.ndarray, "stages"], num_micro_batches: int) -> Order:
    kind, numbers = _forwards_then_alternating(warm_up, num_micro_batches)
    return Order(kind=kind, micro_batch=numbers, chunk=np.zeros_like(kind))


def _gpipe_order(num_stages: int, num_micro_batches: int, _: int) -> Order:
    return _plain_order(np.full(num_stages, num_micro_batches), num_micro_batches)


def _one_f_one_b_order(num_stages: int, num_micro_batches: int, _: int) -> Order:
    return _plain_order(num_stages - 1 - np.arange(num_stages), num_micro_batches)


def _interleaved_order(num_stages: int, num_micro_batches: int, num_chunks: int) -> Order:
    """Returns Megatron-LM's order.

    Source: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py, functions
    `get_pp_rank_microbatches` (warm-up) and `get_schedule_table` (rounds of micro-batches).
    """
    stages = np.arange(num_stages)
    warm_up = 2 * (num_stages - 1 - stages) + (num_chunks - 1) * num_stages
    kind, numbers = _forwards_then_alternating(warm_up, num_micro_batches * num_chunks)
    rounds, in_round = np.divmod(numbers, num_stages * num_chunks)
    chunk, in_chunk = np.divmod(in_round, num_stages)
    is_forward = kind == Pass.FORWARD
    return Order(
        kind=kind,
        micro_batch=rounds * num_stages + in_chunk,
        chunk=np.where(is_forward, chunk, num_chunks - 1 - chunk),
    )


def _plain_violation(num_stages: int, num_micro_batches: int, num_chunks: int) -> str | None:
    if num_stages < 1 or num_micro_batches < 1:
        return f"{num_stages} stages and {num_micro_batches} micro-batches must be at least 1"
    if num_chunks != 1:
        return f"a stage holds 1 chunk of layers, not {num_chunks}; use interleaved_1f1b"
    return None


def _interleaved_violation(num_stages: int, num_micro_batches: int, num_chunks: int) -> str | None:
    if num_stages < 2:
        return f"{num_stages} stages have nothing to interleave; it needs at least 2"
    if num_chunks < 2:
        return f"a stage must hold at least 2 chunks of layers, not {num_chunks}; use 1f1b"
    if num_micro_batches < 1 or num_micro_batches % num_stages:
        return f"{num_micro_batches} micro-batches are not a multiple of {num_stages} stages"
    return None


SCHEDULES: dict[str, Schedule] = {
    "gpipe": Schedule(_gpipe_order, _plain_violation),
    "1f1b": Schedule(_one_f_one_b_order, _plain_violation),
    "interleaved_1f1b": Schedule(_interleaved_order, _interleaved_violation),
}
