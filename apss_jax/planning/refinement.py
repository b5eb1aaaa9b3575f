"""The plans that lead, made better: evener cuts, cuts by the schedule, other orders of devices.

What the rounds cost was cut by a closed form, on a few orders of devices. Here the best of it gets
a search of its own, and what that finds is kept only if the full cost says that it is faster: no
plan is worse for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import Arrangement
from apss_jax.partitioning.portfolio import arranged
from apss_jax.partitioning.refinement import refined_cuts
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import Costs, cost_choices, joined
from apss_jax.planning.cutting import Candidate, Cutter, offsets_of
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.pipelines import MAX_TYPES, Blocks, joint_of, pipeline_of
from apss_jax.planning.placement import degrees_of, place
from apss_jax.planning.shortfall import excess_bytes
from apss_jax.planning.tables import CostTables

# Plans that are refined where kinds of nodes differ: the order of devices can change the ranking.
MIXED_PLANS = 16
# Simulated steps for the cuts of one plan, and for orders and cuts together.
CUT_BUDGET, ORDER_BUDGET = 60, 1_000
# Passes of chunks in all those steps together: a few hundredths of a second for one plan. Long
# pipelines of equal devices gained nothing from eight times as many.
CUT_PASSES = 500_000
# Longer pipelines of mixed devices keep the orders that they have.
MAX_ARRANGED_STAGES = 32
# Gains below this share of a step are not worth cuts that look odd.
GAIN_FRACTION = 1e-4


@dataclass(frozen=True, eq=False)
class Shown:
    """The choices that become plans, best first."""

    choices: list[Choice]
    costs: Costs


@dataclass(frozen=True, eq=False)
class Opened:
    """A layout whose devices are still open."""

    joint: JointInstance
    blocks: Blocks


@dataclass(frozen=True, eq=False)
class Found:
    """Everything that was costed, and what was left out."""

    choices: list[Choice]
    costs: Costs
    fits: np.ndarray  # bool, of each choice
    dropped: dict[str, int]

    @property
    def ranking(self) -> np.ndarray:
        """Returns the rows that fit, fastest first; equal times keep the order of costing."""
        rows = np.flatnonzero(self.fits)
        return rows[np.argsort(self.costs.step_time_s[rows], kind="stable")]

    def best(self, count: int) -> Shown:
        """Returns the fastest row of each set of degrees; others only where those are too few."""
        ranking = self.ranking.tolist()
        first: dict[tuple[int, ...], int] = {}
        for row in ranking:
            first.setdefault(degrees_of(self.choices[row].layout), row)
        leading = set(list(first.values())[:count])
        rest = [row for row in ranking if row not in leading]
        chosen = sorted([*leading, *rest[: count - len(leading)]], key=ranking.index)
        return Shown([self.choices[row] for row in chosen], self.costs.rows(np.array(chosen, int)))


def refined(inputs: Inputs, tables: CostTables, found: Found, count: int, solver: str) -> Shown:
    """Returns the best choices after a search of their own, best first.

    Cuts of rules stay as they are: they are asked for to compare. The network's come beside all
    that the exact solver gets.
    """
    if solver not in ("exact", "dpsn") or not found.fits.any():
        return found.best(count)
    is_mixed = len(np.unique(inputs.topology.group)) > 1
    lead = found.best(max(count, MIXED_PLANS) if is_mixed else count)
    finder = Finder(inputs, tables)
    others = [finder.others(choice) for choice in lead.choices]
    if solver == "dpsn":
        proposed = finder.proposed(lead.choices)
        others = [own + more for own, more in zip(others, proposed, strict=True)]
    tried = [other for own in others for other in own]
    if not tried:
        return found.best(count)
    costs = cost_choices(tables.problem, tables.index, [other.choice for other in tried])
    fits = excess_bytes(inputs, [other.choice for other in tried], costs) < 0
    both = joined([lead.costs, costs])
    best, row = list(range(len(others))), len(others)
    for place_, own in enumerate(others):
        for other in own:
            limit_s = both.step_time_s[best[place_]] * (1 - other.least_gain)
            if fits[row - len(others)] and both.step_time_s[row] <= limit_s:
                best[place_] = row
            row += 1
    choices = [*lead.choices, *(other.choice for other in tried)]
    kept = [choices[row] for row in best]
    return Found(kept, both.rows(np.array(best)), np.ones(len(best), bool), {}).best(count)


@dataclass(frozen=True, eq=False)
class Other:
    """A choice that may be better than the one it is made of, and by what share it must be."""

    choice: Choice
    least_gain: float


class Finder:
    """Makes other choices of one: the same layout with other cuts, or on other devices."""

    def __init__(self, inputs: Inputs, tables: CostTables) -> None:
        self._inputs = inputs
        self._tables = tables
        self._cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
        self._is_mixed = len(np.unique(inputs.topology.group)) > 1

    def others(self, choice: Choice) -> list[Other]:
        """Returns evener cuts, cuts by the schedule, and the layout on another order of devices.

        The compiled search takes seconds to compile on a machine's first use, so that it is left
        out where the closed form is near: equal nodes, one chunk a stage.
        """
        if choice.num_pieces == 1:
            return []
        found = [Other(self._cutter.evened(choice, self._tables), 0.0)]
        if self._is_uneven(choice):
            found.append(Other(self._recut(choice), GAIN_FRACTION))
        if (opened := self._opened(choice)) is not None:
            best = arranged(opened.joint, budget=ORDER_BUDGET)
            found += self._moved(choice, opened, best)
        return found

    def proposed(self, choices: Sequence[Choice]) -> list[list[Other]]:
        """Returns for each choice the same layout with cuts or devices from the network, if any.

        It is asked where the schedule matters, as the compiled search is.
        """
        found: list[list[Other]] = [[] for _ in choices]
        rows = [row for row, choice in enumerate(choices) if self._is_uneven(choice)]
        if not rows:
            return found
        from apss_jax.planning.proposals import proposed_arrangements, proposed_cuts

        tables = {row: self._tables.by_setting[choices[row].layout.setting] for row in rows}
        pipelines = [
            pipeline_of(self._cutter, _candidate(choices[row]), tables[row]) for row in rows
        ]
        known = [choices[row].offsets[1:-1] - 1 for row in rows]
        for row, cuts in zip(rows, proposed_cuts(pipelines, known), strict=True):
            if cuts is not None:
                recut = replace(choices[row], offsets=offsets_of(cuts, tables[row]))
                found[row].append(Other(recut, GAIN_FRACTION))
        opened = {row: own for row in rows if (own := self._opened(choices[row])) is not None}
        arrangements = proposed_arrangements([own.joint for own in opened.values()], ORDER_BUDGET)
        for (row, own), best in zip(opened.items(), arrangements, strict=True):
            found[row] += self._moved(choices[row], own, best)
        return found

    def _is_uneven(self, choice: Choice) -> bool:
        """Tells whether the schedule sees more than the closed form does."""
        layout = choice.layout
        is_uneven = self._is_mixed or layout.virtual_stages > 1
        return is_uneven and layout.schedule != "gpipe" and choice.num_pieces > 1

    def _recut(self, choice: Choice) -> Choice:
        table = self._tables.by_setting[choice.layout.setting]
        pipeline = pipeline_of(self._cutter, _candidate(choice), table)
        own = choice.offsets[1:-1] - 1
        passes = 2 * pipeline.num_pieces * pipeline.num_micro_batches
        budget = max(1, min(CUT_BUDGET, CUT_PASSES // passes))
        cuts = refined_cuts(pipeline, own[None], budget=budget).cuts[0]
        return replace(choice, offsets=offsets_of(cuts, table))

    def _opened(self, choice: Choice) -> Opened | None:
        """Returns the layout with its devices open; None where there is no order to choose."""
        topology, layout = self._inputs.topology, choice.layout
        if not self._is_mixed or layout.schedule != "1f1b":
            return None
        blocks = Blocks.of(topology, layout)
        stages = layout.pipeline_parallel
        is_open = 1 < len(blocks.of_type) <= MAX_TYPES and stages <= MAX_ARRANGED_STAGES
        if not is_open or blocks.num_stages < stages:
            return None
        table = self._tables.by_setting[layout.setting]
        return Opened(joint_of(self._cutter, topology, _candidate(choice), table, blocks), blocks)

    def _moved(self, choice: Choice, opened: Opened, best: Arrangement | None) -> list[Other]:
        """Returns the layout on the devices and with the cuts that were found, if any were."""
        if best is None:
            return []
        layout = choice.layout
        table = self._tables.by_setting[layout.setting]
        devices = opened.blocks.placed(best.order)
        placement = place(self._inputs.topology, devices, layout.expert_parallel)
        moved = replace(choice, placement=placement, offsets=offsets_of(best.cuts, table))
        return [Other(moved, GAIN_FRACTION)]


def _candidate(choice: Choice) -> Candidate:
    return Candidate(choice.layout, choice.placement, choice.num_micro_batches)
