"""Layouts on devices, in the order in which they deserve a full cost, with a bound on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from apss_jax.planning.cutting import Candidate
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.placement import Placement, assign_devices, device_orders, place
from apss_jax.planning.tables import CostTables
from apss_jax.schema.layout import Layout
from apss_jax.schema.tables import COMM_KINDS, Setting


@dataclass(frozen=True, eq=False)
class Lineup:
    """Candidates with a lower bound and a guess of their step time, best guess first."""

    candidates: list[Candidate]
    bound_s: Float[np.ndarray, " batch"]


def line_up(inputs: Inputs, layouts: Sequence[Layout], tables: CostTables) -> Lineup:
    """Returns every layout on every order of devices worth trying, best guess first."""
    candidates = list(_candidates(inputs, layouts))
    pace = _Pace(inputs, tables)
    figures = [pace.bound_and_guess_s(candidate) for candidate in candidates]
    bound_s, guess_s = np.array(figures).reshape(-1, 2).T
    order = np.argsort(guess_s, kind="stable")
    return Lineup([candidates[i] for i in order], bound_s[order])


def _candidates(inputs: Inputs, layouts: Sequence[Layout]) -> Iterator[Candidate]:
    orders = list(device_orders(inputs.topology))
    batch = inputs.workload.global_batch
    placements: dict[tuple[int, ...], Placement | None] = {}
    for layout in layouts:
        for i, order in enumerate(orders):
            key = (i, *_degrees(layout))
            if key not in placements:
                placements[key] = _placement(inputs, order, layout)
            found = placements[key]
            if found is not None:
                yield Candidate(layout, found, layout.num_micro_batches(batch))


def _degrees(layout: Layout) -> tuple[int, ...]:
    return (
        layout.tensor_parallel,
        layout.context_parallel,
        layout.data_parallel,
        layout.pipeline_parallel,
        layout.expert_parallel,
    )


def _placement(
    inputs: Inputs, order: Int[np.ndarray, " devices"], layout: Layout
) -> Placement | None:
    devices = assign_devices(inputs.topology, order, layout)
    if devices is None:
        return None
    return place(inputs.topology, devices, layout.expert_parallel)


class _Pace:
    """How long all units together take on one stage; remembers what candidates share."""

    def __init__(self, inputs: Inputs, tables: CostTables) -> None:
        self._tables = tables
        self._step_s = inputs.stack.step_s
        self._exposed = np.ones(len(COMM_KINDS))
        self._exposed[COMM_KINDS.index("context")] = inputs.stack.context_exposed_fraction
        self._known: dict[tuple[Setting, int], Float[np.ndarray, " stages"]] = {}

    def bound_and_guess_s(self, candidate: Candidate) -> tuple[float, float]:
        """Returns a time that no partition can beat, and one that good partitions come near.

        With S_s the time of all units on stage s, some stage needs at least H = 1 / sum(1 / S_s)
        for each micro-batch, and one micro-batch has to pass every unit.
        """
        whole_s = self._whole_s(candidate)
        balanced_s = 1.0 / np.sum(1.0 / whole_s)
        rounds = candidate.num_micro_batches
        layout = candidate.layout
        bound_s = max(rounds * balanced_s, float(whole_s.min()))
        fill = (layout.pipeline_parallel - 1) / layout.virtual_stages
        guess_s = (rounds + fill) * balanced_s + self._tail_s(candidate)
        return bound_s + self._step_s, guess_s + self._step_s

    def _whole_s(self, candidate: Candidate) -> Float[np.ndarray, " stages"]:
        key = (candidate.layout.setting, id(candidate.placement))
        if key not in self._known:
            table = self._tables.by_setting[key[0]]
            place_ = candidate.placement
            on_type = table.compute_s.sum(axis=(0, 2))
            compute = np.where(place_.has_type, on_type, 0.0).max(axis=1)
            moved, calls = table.comm_bytes.sum(axis=(0, 2)), table.comm_calls.sum(axis=(0, 2))
            comm = (place_.comm_s_per_byte * self._exposed) @ moved
            comm += (place_.comm_s_per_call * self._exposed) @ calls
            self._known[key] = compute + comm
        return self._known[key]

    def _tail_s(self, candidate: Candidate) -> float:
        """Returns a rough gradient reduction: an equal part of the parameters on each stage."""
        table = self._tables.by_setting[candidate.layout.setting]
        held = np.array([table.dense_parameters.sum(), table.expert_parameters.sum()])
        problem = self._tables.problem
        sent = float(problem.reduced_gradient_bytes + problem.weight_bytes)
        sent *= float(problem.gradient_exposed_fraction)
        worst = candidate.placement.gradient_s_per_byte.max(axis=0)
        return float(worst @ held) * sent / candidate.layout.pipeline_parallel
