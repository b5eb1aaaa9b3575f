"""What solutions are worth: the time of a step, in closed form or by following the schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int

from apss_jax.partitioning.flow import Flow
from apss_jax.partitioning.pipeline import PipelineInstance
from apss_jax.partitioning.refinement import improved


@dataclass(frozen=True, eq=False)
class Objective:
    """Scores solutions of one problem, given as the offset where each piece ends."""

    flow: Flow
    time_s: Float64[np.ndarray, "pieces offsets"]
    boundary_s: Float64[np.ndarray, "offsets _"]
    num_micro_batches: int
    is_simulated: bool

    @staticmethod
    def of(instance: PipelineInstance, *, is_simulated: bool) -> "Objective":
        """Returns the objective of a problem."""
        flow = instance.flow()
        boundary_s = np.zeros((instance.num_layers + 1, instance.num_pieces))
        boundary_s[1:-1, :-1] = 2 * instance.transfer_s
        rounds = instance.num_micro_batches * instance.virtual_stages
        time_s = flow.sums[0] + flow.sums[1]
        return Objective(flow, time_s, boundary_s, rounds, is_simulated)

    def costs_s(self, ends: Int[np.ndarray, "samples pieces"]) -> Float64[np.ndarray, "samples"]:
        """Returns the step time of each solution; inf if it has an empty piece or does not fit."""
        offsets = np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1).astype(np.int64)
        is_good = self.are_legal(offsets)
        costs_s = np.full(len(ends), np.inf)
        if is_good.any():
            find = self.flow.steps_s if self.is_simulated else self._closed_forms_s
            costs_s[is_good] = find(offsets[is_good])
        return costs_s

    def improved(
        self, ends: Int[np.ndarray, "samples pieces"], budget: int
    ) -> Int[np.ndarray, "samples pieces"]:
        """Returns solutions that a local search by the simulator finds from the given ones."""
        offsets = np.concatenate([np.zeros_like(ends[:, :1]), ends], axis=1).astype(np.int64)
        improved(self.flow, offsets, budget, 0)
        return offsets[:, 1:]

    def are_legal(self, offsets: Any) -> Bool[np.ndarray, "samples"]:
        """Tells which solutions have no empty piece and keep to the memory."""
        is_good = (np.diff(offsets, axis=1) > 0).all(axis=1)
        allowed = self.flow.allowed_bytes
        if np.isfinite(allowed).any():
            held = np.diff(self.flow.held[:, offsets], axis=-1)
            used = held[0] + self.flow.places[2] * held[1]
            by_stage = used.reshape(len(used), -1, len(allowed)).sum(axis=1)
            is_good &= (by_stage <= allowed).all(axis=1)
        return is_good

    def _closed_forms_s(self, offsets: Any) -> Float64[np.ndarray, "samples"]:
        rows = np.arange(offsets.shape[1] - 1)
        starts, ends = offsets[:, :-1], offsets[:, 1:]
        time_s = self.time_s[rows, ends] - self.time_s[rows, starts]
        tails = self.flow.sums[2]
        tail_s = tails[rows, ends] - tails[rows, starts]
        boundary_s = self.boundary_s[ends, rows].sum(axis=1)
        rounds_s = (self.num_micro_batches - 1) * time_s.max(axis=1)
        return time_s.sum(axis=1) + rounds_s + boundary_s + tail_s.max(axis=1)


def costs_of_all(
    objectives: Sequence[Objective], ends: Int[np.ndarray, "batch samples stages"]
) -> Float64[np.ndarray, "batch samples"]:
    """Returns the step times of several solutions of several problems, padding left aside."""
    rows = [
        objective.costs_s(each[:, : objective.flow.num_pieces])
        for objective, each in zip(objectives, ends, strict=True)
    ]
    return np.array(rows)
