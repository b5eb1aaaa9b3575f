"""Among partitions of equal cost, the even one: people expect it, and early stages hold less."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from apss_jax.partitioning.instance import PartitionInstance, closed_form_cost_s

SAME_FRACTION = 1e-9  # of a figure: rounding, no change
MOVES_PER_CUT = 16


def evened_cuts(
    instance: PartitionInstance, cuts: Int[np.ndarray, " cuts"]
) -> Int[np.ndarray, " cuts"]:
    """Returns cuts of no higher cost and no longer stage, moved one layer at a time towards even.

    A closed form knows the slowest stage alone, so that its best partitions leave the others as
    they come. A move is kept if it lessens the sum of the squares of the stage times, and if the
    memory allows it.
    """
    state = _Stages(instance, np.concatenate([[0], cuts + 1, [instance.num_layers]]))
    for _ in range(MOVES_PER_CUT * len(cuts)):
        if not any(state.moves(cut) for cut in range(1, len(cuts) + 1)):
            break
    return state.offsets[1:-1] - 1


class _Stages:
    """Where stages begin and end, with their times."""

    def __init__(self, instance: PartitionInstance, offsets: Int[np.ndarray, " offsets"]) -> None:
        self.offsets = offsets
        self._instance = instance
        zero = np.zeros((instance.num_stages, 1))
        self._time_s = np.concatenate([zero, np.cumsum(instance.layer_cost_s, axis=1)], axis=1)
        self._held_bytes = np.concatenate([zero, np.cumsum(instance.memory_bytes, axis=1)], axis=1)
        self._longest_s = max(self._stage_s(s, offsets) for s in range(instance.num_stages))
        self._cost_s = closed_form_cost_s(instance, offsets[1:-1] - 1)

    def moves(self, cut: int) -> bool:
        """Moves one boundary to either side if that is better, and tells whether it did."""
        for step in (-1, 1):
            moved = self.offsets.copy()
            moved[cut] += step
            if moved[cut - 1] < moved[cut] < moved[cut + 1] and self._is_better(moved, cut):
                self.offsets = moved
                return True
        return False

    def _is_better(self, moved: Int[np.ndarray, " offsets"], cut: int) -> bool:
        pair = (cut - 1, cut)
        old_s = [self._stage_s(s, self.offsets) for s in pair]
        new_s = [self._stage_s(s, moved) for s in pair]
        limit = 1 + SAME_FRACTION
        if np.dot(new_s, new_s) * limit >= np.dot(old_s, old_s):
            return False
        if max(new_s) > self._longest_s * limit or not all(self._fits(s, moved) for s in pair):
            return False
        return closed_form_cost_s(self._instance, moved[1:-1] - 1) <= self._cost_s * limit

    def _stage_s(self, stage: int, offsets: Int[np.ndarray, " offsets"]) -> float:
        row = self._time_s[stage]
        return float(row[offsets[stage + 1]] - row[offsets[stage]])

    def _fits(self, stage: int, offsets: Int[np.ndarray, " offsets"]) -> bool:
        row = self._held_bytes[stage]
        held = row[offsets[stage + 1]] - row[offsets[stage]]
        return bool(held <= self._instance.capacity_bytes[stage])
