"""Bytes that no partition of a layout undercuts, and bytes that no sensible one exceeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Num

from apss_jax.planning.figures import Quantity, SettingFigures
from apss_jax.problem import GATHERED_UNITS
from apss_jax.schema.layout import SCHEDULES, Layouts
from apss_jax.schema.stack import Stack

PerLayout = Float[np.ndarray, " batch"]
GPIPE = SCHEDULES.index("gpipe")


@dataclass(frozen=True)
class MemoryBounds:
    """Bounds on the predicted memory of the stage that needs most."""

    stack: Stack
    weight_bytes: float
    global_batch: int

    def lower_bytes(
        self, layouts: Layouts, figures: SettingFigures, index: Int[np.ndarray, " batch"]
    ) -> PerLayout:
        """Returns a bound from below for every partition into stages.

        Stage s (0 is the first) holds at least k = min(p - s, m) micro-batches at once, whatever
        the schedule. With S and A the states and activations of the whole model, weights
        y_k = 1 / (S + k A) give  max need x sum(y) >= sum over units of min over k of their need
        x y_k; the ratio is monotone in k, so its ends suffice, and sum(y) is at most an integral
        because y is convex.
        """
        dense_each, expert_each = self._bytes_each(layouts)
        states = figures.dense.total[index] * dense_each
        states += figures.expert.total[index] * expert_each
        kept = figures.saved.total[index]
        stages = layouts.pipeline_parallel.astype(float)
        most = np.minimum(stages, self._micro_batches(layouts))
        need = np.zeros(len(layouts))
        for kind, count in enumerate(figures.kind_count):
            held = figures.kind_dense[index, kind] * dense_each
            held += figures.kind_expert[index, kind] * expert_each
            saved = figures.kind_saved[index, kind]
            first = (held + saved) / (states + kept)
            last = (held + most * saved) / (states + most * kept)
            need += count * np.minimum(first, last)
        full = need / _weight_sum(states, kept, stages, most)
        alone = np.where(stages == 1, figures.working_bytes[index], 0.0)
        return full + alone + self.stack.reserved_bytes

    def upper_bytes(
        self,
        layouts: Layouts,
        figures: SettingFigures,
        index: Int[np.ndarray, " batch"],
        share: PerLayout,
    ) -> PerLayout:
        """Returns a bound from above for partitions whose longest stage has this share of time."""
        dense_each, expert_each = self._bytes_each(layouts)
        several = layouts.pipeline_parallel > 1
        dense = _largest(figures.dense, index, share, several)
        dense = dense + np.where(several, figures.tied[index], 0.0)
        expert = _largest(figures.expert, index, share, several)
        saved = _largest(figures.saved, index, share, several)
        states = dense * dense_each + expert * expert_each
        moment = figures.working_bytes[index] + self.stack.reserved_bytes
        moment = moment + self._gathered(layouts, figures, index)
        return states + saved * self._in_flight(layouts) + moment

    def _gathered(
        self, layouts: Layouts, figures: SettingFigures, index: Int[np.ndarray, " batch"]
    ) -> PerLayout:
        """Returns the whole weights of the units at work under ZeRO 3."""
        each = GATHERED_UNITS * self.weight_bytes
        held = figures.dense.total[index] + figures.expert.total[index]
        is_gathered = (layouts.zero_stage == 3) & (layouts.pipeline_parallel == 1)
        return np.where(is_gathered, each * held / figures.kind_count.sum(), 0.0)

    def _bytes_each(self, layouts: Layouts) -> tuple[PerLayout, PerLayout]:
        """Returns the bytes that a held dense parameter and an expert's one take on a device."""
        shards = layouts.shards
        # Beside a pipeline the optimizer alone is sharded, as in the cost model.
        most = np.where(layouts.pipeline_parallel > 1, 1, 3)
        zero = np.minimum(layouts.zero_stage, most)
        parts = ((3, self.weight_bytes), (2, self.stack.gradient_bytes_of(self.weight_bytes)),
                 (1, self.stack.optimizer_bytes_of(self.weight_bytes)))  # fmt: skip

        def each(over: Num[np.ndarray, " batch"]) -> PerLayout:
            spread = [size / np.where(zero >= first, over, 1) for first, size in parts]
            return np.sum(spread, axis=0)

        return each(shards), each(shards / layouts.expert_parallel)

    def _micro_batches(self, layouts: Layouts) -> Int[np.ndarray, " batch"]:
        return self.global_batch // (layouts.data_parallel * layouts.micro_batch)

    def _in_flight(self, layouts: Layouts) -> Int[np.ndarray, " batch"]:
        """Returns the most micro-batches of any chunk that a stage holds under the schedule."""
        stages, count = layouts.pipeline_parallel, self._micro_batches(layouts)
        depth = np.where(layouts.virtual_stages > 1, 2 * stages + 1, stages)
        return np.where(layouts.schedule == GPIPE, count, np.minimum(depth, count))


def _weight_sum(
    states: PerLayout, kept: PerLayout, stages: PerLayout, most: PerLayout
) -> PerLayout:
    """Returns at least the sum over stages of 1 / (states + k x kept)."""
    full = 1.0 / (states + most * kept)
    safe = np.maximum(kept, 1e-9 * states)
    rising = np.log((states + (most + 0.5) * safe) / (states + 0.5 * safe)) / safe
    return np.where(most > 1, rising + (stages - most) * full, stages * full)


def _largest(
    quantity: Quantity, index: Int[np.ndarray, " batch"], share: PerLayout, several: np.ndarray
) -> PerLayout:
    """Returns the most that one stage holds: an end, and its share of the inner layers."""
    total = quantity.total[index]
    inner = quantity.inner[index] * np.minimum(share * quantity.density[index], 1.0)
    return np.where(several, np.minimum(quantity.end[index] + inner, total), total)
