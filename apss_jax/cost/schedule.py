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
    pad_table,
    table_from_order,
)

Numbers = Int[np.ndarray, "..."]
WarmUpFn = Callable[[int, int, int], Int[np.ndarray, "stages"]]
PlaceFn = Callable[[Numbers, int, int], tuple[Numbers, Numbers]]
RuleFn = Callable[[int, int, int], str | None]

# Slots before the repeated rows must outlast the start-up. Four passes of the pipeline leave two
# to settle in; plans that settle later are simulated in full.
_FOLDED_DEPTHS = 4


@dataclass(frozen=True)
class Schedule:
    """A named schedule: forward passes to warm up, then forward and backward passes in turn.

    `warm_up` says how many come first on each stage and `violation` what is asked, of (stages,
    micro-batches, chunks); `place` the micro-batch and the chunk of the forward passes of some
    running numbers, of (numbers, stages, chunks). Backward passes go through the chunks reversed.
    """

    warm_up: WarmUpFn
    place: PlaceFn
    violation: RuleFn

    def order(self, num_stages: int, num_micro_batches: int, num_chunks: int) -> Order:
        """Returns the ops of every stage."""
        warm_up = self.warm_up(num_stages, num_micro_batches, num_chunks)
        kind, numbers = _forwards_then_alternating(warm_up, num_micro_batches * num_chunks)
        micro_batch, chunk = self.place(numbers, num_stages, num_chunks)
        chunk = np.where(kind == Pass.FORWARD, chunk, num_chunks - 1 - chunk)
        return Order(kind, micro_batch, chunk)

    def most_in_flight(
        self, num_stages: int, num_micro_batches: int, num_chunks: int
    ) -> Int[np.ndarray, "stages chunks"]:
        """Returns the micro-batches of each chunk that a stage holds when it holds most chunks.

        That is before its first backward pass. Chunks reach their own peaks at different moments,
        so that peaks must not be added.
        """
        warm_up = self.warm_up(num_stages, num_micro_batches, num_chunks)
        passes = np.minimum(warm_up + 1, num_micro_batches * num_chunks)
        _, chunk = self.place(np.arange(passes.max()), num_stages, num_chunks)
        held = np.cumsum(chunk[:, None] == np.arange(num_chunks), axis=0)
        return held[passes - 1]


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
    """Returns what each stage of a named schedule holds of each chunk when it holds most."""
    return SCHEDULES[name].most_in_flight(num_stages, num_micro_batches, num_chunks)


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
    ahead = np.minimum(warm_up, num_passes).astype(np.int32)[:, None]
    op = np.arange(2 * num_passes, dtype=np.int32)
    turn, is_second = np.divmod(op - ahead, 2)  # within the ops in turn
    in_turn = (op >= ahead) & (op < 2 * num_passes - ahead)
    is_backward = np.where(in_turn, is_second == 1, op >= num_passes)
    number = np.where(in_turn, turn + ahead * (1 - is_second), op - num_passes * is_backward)
    return np.where(is_backward, np.int32(Pass.BACKWARD), np.int32(Pass.FORWARD)), number


def _all_forward_first(
    num_stages: int, num_micro_batches: int, _: int
) -> Int[np.ndarray, "stages"]:
    return np.full(num_stages, num_micro_batches)


def _as_deep_as_the_rest(num_stages: int, _: int, __: int) -> Int[np.ndarray, "stages"]:
    return num_stages - 1 - np.arange(num_stages)


def _megatron_warm_up(num_stages: int, _: int, num_chunks: int) -> Int[np.ndarray, "stages"]:
    """Returns Megatron-LM's warm-up.

    Source: NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py, function
    `get_pp_rank_microbatches`.
    """
    return 2 * (num_stages - 1 - np.arange(num_stages)) + (num_chunks - 1) * num_stages


def _one_chunk(numbers: Numbers, _: int, __: int) -> tuple[Numbers, Numbers]:
    return numbers, np.zeros_like(numbers)


def _megatron_rounds(numbers: Numbers, num_stages: int, num_chunks: int) -> tuple[Numbers, Numbers]:
    """Returns rounds of as many micro-batches as stages, through one chunk after the other.

    Source: `get_schedule_table` in the same file.
    """
    rounds, in_round = np.divmod(numbers, num_stages * num_chunks)
    chunk, in_chunk = np.divmod(in_round, num_stages)
    return rounds * num_stages + in_chunk, chunk


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
    "gpipe": Schedule(_all_forward_first, _one_chunk, _plain_violation),
    "1f1b": Schedule(_as_deep_as_the_rest, _one_chunk, _plain_violation),
    "interleaved_1f1b": Schedule(_megatron_warm_up, _megatron_rounds, _interleaved_violation),
}
