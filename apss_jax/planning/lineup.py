"""Layouts in the order in which they deserve a full cost, placed on devices when it is their turn.

Placing a layout of thousands of devices takes longer than bounding it, so it waits until the
fastest plans found leave the layout a chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from apss_jax.planning.candidates import Candidates
from apss_jax.planning.cutting import Candidate
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.placement import Placement, assign_devices, degrees_of, device_orders, place
from apss_jax.planning.tables import CostTables
from apss_jax.schema.layout import Layout, Layouts
from apss_jax.schema.tables import COMM_KINDS, Setting


@dataclass(eq=False)
class Lineup:
    """Layouts, the one with the least bound on its step time first; counts what it leaves out."""

    layouts: Layouts
    bound_s: Float[np.ndarray, " batch"]
    placer: Placer
    pace: Pace
    dropped: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(inputs: Inputs, chosen: Candidates, tables: CostTables) -> Lineup:
        """Returns the lineup of the layouts that a policy proposes."""
        order = np.argsort(chosen.bound_s, kind="stable")
        layouts, bound_s = chosen.layouts.take(order), chosen.bound_s[order]
        return Lineup(layouts, bound_s, Placer(inputs), Pace(inputs, tables))

    def __len__(self) -> int:
        """Returns the number of layouts."""
        return len(self.layouts)

    def rounds(self, size: int) -> Iterator[Int[np.ndarray, " _"]]:
        """Yields the rows of some layouts at a time."""
        for start in range(0, len(self), size):
            yield np.arange(start, min(start + size, len(self)))

    def hopeful(self, rows: Int[np.ndarray, " _"], limit_s: float) -> list[Candidate]:
        """Returns the layouts of some rows that can be as fast as `limit_s`, on devices."""
        found = []
        for layout in self.layouts.take(self._near(rows, limit_s)):
            placed = self.placer.candidates(layout)
            fast = [one for one in placed if self.pace.bound_s(one) <= limit_s]
            self.dropped["cannot_win"] += bool(placed) and not fast
            self.dropped["cannot_be_placed"] += not placed
            found += fast
        return found

    def leave_out(self, rows: Int[np.ndarray, " _"], limit_s: float) -> None:
        """Counts the layouts of some rows as beyond what one search costs."""
        self.dropped["search_budget"] += len(self._near(rows, limit_s))

    def _near(self, rows: Int[np.ndarray, " _"], limit_s: float) -> Int[np.ndarray, " _"]:
        near = rows[self.bound_s[rows] <= limit_s]
        self.dropped["cannot_win"] += len(rows) - len(near)
        return near


class Placer:
    """Puts layouts on devices; remembers what layouts of the same degrees share."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._orders = list(device_orders(inputs.topology))
        self._known: dict[tuple[int, ...], list[Placement]] = {}

    def candidates(self, layout: Layout) -> list[Candidate]:
        """Returns a layout on every order of devices worth trying."""
        key = degrees_of(layout)
        if key not in self._known:
            self._known[key] = list(self._placements(layout))
        count = layout.num_micro_batches(self._inputs.workload.global_batch)
        return [Candidate(layout, placement, count) for placement in self._known[key]]

    def _placements(self, layout: Layout) -> Iterator[Placement]:
        topology = self._inputs.topology
        for order in self._orders:
            devices = assign_devices(topology, order, layout)
            if devices is not None:
                yield place(topology, devices, layout.expert_parallel, layout.replicas)


class Pace:
    """How fast placed layouts can be at best; remembers what candidates share."""

    def __init__(self, inputs: Inputs, tables: CostTables) -> None:
        self._tables = tables
        self._step_s = inputs.stack.step_s
        self._exposed = np.ones(len(COMM_KINDS))
        self._exposed[COMM_KINDS.index("context")] = inputs.stack.context_exposed_fraction
        self._known: dict[tuple[Setting, int], Float[np.ndarray, " stages"]] = {}

    def bound_s(self, candidate: Candidate) -> float:
        """Returns a time that no partition can beat.

        With S_s the time of all units on stage s, some stage needs at least H = 1 / sum(1 / S_s)
        for each micro-batch, and one micro-batch has to pass every unit.
        """
        whole_s = self._whole_s(candidate)
        balanced_s = 1.0 / float(np.sum(1.0 / whole_s))
        longest_s = max(candidate.num_micro_batches * balanced_s, float(whole_s.min()))
        return longest_s + self._step_s

    def _whole_s(self, candidate: Candidate) -> Float[np.ndarray, " stages"]:
        key = (candidate.layout.setting, id(candidate.placement))
        if key not in self._known:
            table = self._tables.by_setting[key[0]]
            place_ = candidate.placement
            on_type = table.compute_s.sum(axis=(0, 2))
            compute = np.where(place_.has_type, on_type, 0.0).max(axis=1)
            moved, calls = table.comm_bytes.sum(axis=(0, 2)), table.comm_calls.sum(axis=(0, 2))
            comm = (place_.comm_s_per_byte * self._exposed) @ moved
            per_call = place_.comm_s_per_call + float(self._tables.problem.collective_latency_s)
            comm += (per_call * self._exposed) @ calls
            self._known[key] = compute + comm
        return self._known[key]
