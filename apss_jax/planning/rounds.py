"""Follows the schedules of cuts that can still be among the plans that are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import Costs, cost_choices, joined
from apss_jax.planning.cutting import Cut
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.placement import degrees_of
from apss_jax.planning.shortfall import excess_bytes
from apss_jax.planning.tables import CostTables
from apss_jax.schema.layout import Layout

AT_ONCE = 16  # cuts costed between two looks at what can still win
ROUNDING = 1e-5  # the cost model computes in float32, bounds in float64


class Rounds:
    """What was costed so far, and the step time that remaining layouts have to reach."""

    def __init__(self, inputs: Inputs, tables: CostTables, shown: int | None) -> None:
        self.choices: list[Choice] = []
        self.limit_s = float("inf")
        self._inputs = inputs
        self._tables = tables
        self._shown = shown
        self._parts: list[Costs] = []
        self._fits: list[np.ndarray] = []
        self.fastest_s: dict[tuple[int, ...], float] = {}
        self._nearest: Cut | None = None

    @property
    def costs(self) -> Costs:
        """Returns the costs of all choices."""
        return joined(self._parts)

    @property
    def fits(self) -> np.ndarray:
        """Returns which choices fit."""
        return np.concatenate(self._fits) if self._fits else np.zeros(0, bool)

    def play(self, cuts: Sequence[Cut]) -> Counter[str]:
        """Costs what fits and can win, least bound first; returns why layouts were left out.

        A layout on several orders of devices counts as costed if any of them was.
        """
        fitting = sorted((cut for cut in cuts if cut.excess_bytes <= 0), key=lambda c: c.least_s)
        costed: set[Layout] = set()
        for start in range(0, len(fitting), AT_ONCE):
            limit_s = self.limit_s * (1 + ROUNDING)
            near = [cut for cut in fitting[start : start + AT_ONCE] if cut.least_s <= limit_s]
            self._cost(near)
            costed |= _layouts(near)
        self._keep_nearest(cuts)
        beaten = _layouts(fitting) - costed
        unfit = _layouts(cuts) - costed - beaten
        return Counter(cannot_win=len(beaten), no_partition_fits=len(unfit))

    def finish(self) -> None:
        """Costs the nearest miss where nothing fits: what a shortfall is measured by."""
        if not self.choices and self._nearest is not None:
            self._cost([self._nearest])

    def _cost(self, cuts: Sequence[Cut]) -> None:
        if not cuts:
            return
        choices = [cut.choice for cut in cuts]
        costs = cost_choices(self._tables.problem, self._tables.index, choices)
        fits = excess_bytes(self._inputs, choices, costs) < 0
        self.choices += choices
        self._parts.append(costs)
        self._fits.append(fits)
        for row in np.flatnonzero(fits).tolist():
            degrees, step_s = degrees_of(choices[row].layout), float(costs.step_time_s[row])
            self.fastest_s[degrees] = min(step_s, self.fastest_s.get(degrees, step_s))
        self.limit_s = self._limit_s()

    def _limit_s(self) -> float:
        """Returns the step time of the last plan shown: plans differ in degrees, if they can."""
        if self._shown is None or len(self.fastest_s) < self._shown:
            return float("inf")
        return sorted(self.fastest_s.values())[self._shown - 1]

    def _keep_nearest(self, cuts: Sequence[Cut]) -> None:
        known = [] if self._nearest is None else [self._nearest]
        self._nearest = min([*known, *cuts], key=lambda cut: cut.excess_bytes, default=None)


def _layouts(cuts: Sequence[Cut]) -> set[Layout]:
    return {cut.choice.layout for cut in cuts}
