"""Step time and memory of many runs at once, grouped so that few tables and programs serve all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Int

from apss_jax.calibration.subject import SkippedRun, Subject, subject_of
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import Costs, cost_choices
from apss_jax.planning.cutting import Candidate, Cutter
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.memory_risk import oom_probability
from apss_jax.planning.placement import (
    Placement,
    assign_devices,
    degrees_of,
    device_orders,
    place,
)
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.planning.uncertainty import Reach, reach_of, step_time_error_fraction
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Spans, Stack
from apss_jax.schema.topology import Topology

ProgressFn = Callable[[int, int], None]
"""Is told how many runs of how many have been predicted."""

PerRun = Float[np.ndarray, " batch"]
SPLITS_NO_NODE = "no layout: the tensor groups do not fit into the nodes"


@dataclass(frozen=True, eq=False)
class Figures:
    """What is predicted of each run."""

    step_time_s: PerRun
    low_s: PerRun  # ends of the 80 % interval
    high_s: PerRun
    measured_fraction: PerRun  # of compute time, measured layer by layer
    memory_bytes: PerRun  # of the stage whose memory the run's framework reports
    oom_probability: PerRun  # of the likeliest stage
    breakdown_s: Float[np.ndarray, "batch time_parts"]  # in the order of `cost.step.Breakdown`


@dataclass(frozen=True, eq=False)
class Predictions:
    """The runs that could be predicted with their figures, and the others with the reason."""

    subjects: tuple[Subject, ...]
    figures: Figures
    skipped: tuple[SkippedRun, ...]


def predict_runs(
    runs: Sequence[Run], *, stack: Stack | None = None, progress: ProgressFn | None = None
) -> Predictions:
    """Returns the prediction of every run that can be used; `stack` replaces each run's own."""
    read = [subject_of(run, stack) for run in runs]
    placer = _Placer()
    subjects, skipped = [], []
    for found in read:
        if isinstance(found, SkippedRun):
            skipped.append(found)
        elif placer.placement(found) is None:
            skipped.append(SkippedRun(found.run, SPLITS_NO_NODE))
        else:
            subjects.append(found)
    figures = _predicted(subjects, placer, progress)
    return Predictions(tuple(subjects), figures, tuple(skipped))


def predict_subjects(subjects: Sequence[Subject]) -> Figures:
    """Returns the figures of runs that can all be placed on their devices."""
    return _predicted(subjects, _Placer(), None)


def reach_of_subject(subject: Subject, spans: Spans) -> Reach:
    """Returns how far a run lies from the runs whose sizes the spans hold."""
    s = subject
    return reach_of(s.model, s.cluster, s.layout, s.workload, spans)


class _Placer:
    """Placements of runs, each cluster and each set of degrees looked at once."""

    def __init__(self) -> None:
        self._topologies: dict[int, Topology] = {}
        self._known: dict[tuple[int, ...], Placement | None] = {}

    def placement(self, subject: Subject) -> Placement | None:
        """Returns the devices in the order of the cluster, None if the layout does not fit."""
        layout = subject.layout
        key = (id(subject.cluster), *degrees_of(layout))
        if key not in self._known:
            topology = self._topology(subject)
            devices = assign_devices(topology, next(device_orders(topology)), layout)
            self._known[key] = (
                None
                if devices is None
                else place(topology, devices, layout.expert_parallel, layout.replicas)
            )
        return self._known[key]

    def _topology(self, subject: Subject) -> Topology:
        key = id(subject.cluster)
        if key not in self._topologies:
            self._topologies[key] = Topology.of(subject.cluster)
        return self._topologies[key]


def _predicted(
    subjects: Sequence[Subject], placer: _Placer, progress: ProgressFn | None
) -> Figures:
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, subject in enumerate(subjects):
        groups.setdefault(_table_key(subject), []).append(i)
    parts, order, done = [], [], 0
    for members in groups.values():
        parts.append(_group_figures([subjects[i] for i in members], placer))
        order += members
        done += len(members)
        if progress is not None:
            progress(done, len(subjects))
    return _in_order(parts, np.array(order, dtype=int))


def _table_key(subject: Subject) -> tuple[object, ...]:
    """Returns what decides the tables: clusters of one device type share them unless measured.

    Clusters of other domains apart, on which some stacks' pipelines take more or less.
    """
    cluster = subject.cluster
    domains = (cluster.num_domains > 1, cluster.domain_devices)
    kinds = id(cluster) if cluster.measurements else (*cluster.used_types, *domains)
    return (id(subject.model), id(subject.stack), subject.seq_len, subject.precision, kinds)


def _group_figures(subjects: Sequence[Subject], placer: _Placer) -> Figures:
    inputs = _inputs(subjects[0])
    tables = cost_tables(inputs, [subject.layout.setting for subject in subjects])
    choices = _choices(subjects, placer, inputs, tables)
    costs = cost_choices(tables.problem, tables.index, choices)
    shares = np.array([_measured_share(choice, tables) for choice in choices])
    return _figures(subjects, choices, costs, shares)


def _inputs(subject: Subject) -> Inputs:
    return Inputs(subject.model, subject.cluster, subject.workload, subject.stack)


def _choices(
    subjects: Sequence[Subject], placer: _Placer, inputs: Inputs, tables: CostTables
) -> list[Choice]:
    candidates = []
    for subject in subjects:
        placement = placer.placement(subject)
        assert placement is not None  # `predict_runs` has looked
        candidates.append(Candidate(subject.layout, placement, subject.num_micro_batches))
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "uniform")
    even = cutter.choices(candidates, tables)
    offsets = [subject.offsets for subject in subjects]
    return [
        choice if given is None else replace(choice, offsets=given)
        for choice, given in zip(even, offsets, strict=True)
    ]


def _measured_share(choice: Choice, tables: CostTables) -> float:
    """Returns the share of all units' compute time that was measured, on the devices in use."""
    table = tables.by_setting[choice.layout.setting]
    present = choice.placement.has_type.any(axis=0)
    total = table.compute_s.sum(axis=0)[present].sum()
    return float(min(table.measured_s[present].sum() / total, 1.0)) if total > 0 else 0.0


def _figures(
    subjects: Sequence[Subject], choices: Sequence[Choice], costs: Costs, measured: PerRun
) -> Figures:
    stack = subjects[0].stack
    error = np.array(
        [
            step_time_error_fraction(stack, reach_of_subject(subject, stack.fitted_spans), share)
            for subject, share in zip(subjects, measured.tolist(), strict=True)
        ]
    )
    step_time_s = stack.time_factor * costs.step_time_s
    total_bytes = costs.memory_bytes.sum(axis=-1)
    capacities = [choice.placement.capacity_bytes for choice in choices]
    chances = [
        _likeliest(row[: len(capacity_bytes)], capacity_bytes, stack)
        for row, capacity_bytes in zip(total_bytes, capacities, strict=True)
    ]
    first = np.array([s.framework.reported_memory == "first_stage" for s in subjects])
    return Figures(
        step_time_s=step_time_s,
        low_s=step_time_s / (1.0 + error),
        high_s=step_time_s * (1.0 + error),
        measured_fraction=measured,
        memory_bytes=np.where(first, total_bytes[:, 0], total_bytes.max(axis=1)),
        oom_probability=np.array(chances),
        breakdown_s=stack.time_factor * costs.breakdown_s,
    )


def _likeliest(
    held_bytes: Float[np.ndarray, " stages"],
    capacity_bytes: Float[np.ndarray, " stages"],
    stack: Stack,
) -> float:
    """Returns the chance that the fullest stage runs out of memory."""
    fullest = int(np.argmax(held_bytes / capacity_bytes))
    return float(oom_probability(float(held_bytes[fullest]), float(capacity_bytes[fullest]), stack))


def _in_order(parts: Sequence[Figures], order: Int[np.ndarray, " batch"]) -> Figures:
    """Returns the rows of all groups in the order of the runs."""
    back = np.argsort(order)

    def column(name: str) -> np.ndarray:
        rows = [getattr(part, name) for part in parts]
        return (
            np.concatenate(rows)[back] if rows else np.zeros((0, 7) if name == "breakdown_s" else 0)
        )

    return Figures(**{f.name: column(f.name) for f in fields(Figures)})
