"""What a search result says beyond its plans: neighbours, sensitivity, when each op runs."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from apss_jax.schema.document import Part

Verdict = Literal["slower", "faster", "too_big", "illegal"]
Question = Literal["global_batch", "network_speed", "intra_speed"]


class Neighbour(Part):
    """A layout one step away from a plan, and why it is not the one to choose."""

    rank: PositiveInt  # of the plan that it is next to
    change: str  # in words
    verdict: Verdict
    step_time_s: float | None = None  # None where it is not legal
    time_ratio: float | None = None  # its step time over the plan's
    largest_part: str | None = None  # of the breakdown, that differs most in the same direction
    largest_change_s: float | None = None
    fullest_stage: NonNegativeInt | None = None
    memory_bytes: float | None = None  # of that stage
    capacity_bytes: float | None = None
    oom_probability: float | None = None
    reason: str | None = None  # the rule that it breaks, in words


class SensitivityPoint(Part):
    """The same plans with one thing changed."""

    value: float  # the batch, or the factor on the links' speed
    step_time_s: tuple[float | None, ...]  # by rank; None where a plan cannot be run so


class Sensitivity(Part):
    """How step times answer to the batch or to the speed of links; cuts and devices stay."""

    name: Question
    present: float  # the value of the question that was asked
    points: tuple[SensitivityPoint, ...]


class StageTimeline(Part):
    """The ops of one stage in the order in which it runs them, one entry for each in every list."""

    passes: str  # F forward, B backward, U gradient reduction and optimizer update
    micro_batches: tuple[NonNegativeInt, ...]  # 0-based; of U the last one
    chunks: tuple[NonNegativeInt, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]


class Timeline(Part):
    """When the ops of a step of the first plan run; of a long step its start and its end."""

    windows_s: tuple[tuple[float, float], ...]  # whose ops are listed, all of them
    num_micro_batches: PositiveInt
    step_time_s: float  # with the fixed work of each step behind the last op
    stages: tuple[StageTimeline, ...]
