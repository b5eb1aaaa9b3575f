"""One run of the profiler: links, then layers, each kept in the file as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, Link
from apss_jax.schema.document import write_document
from apss_jax.schema.machine import DeviceFacts, Machine, PairFacts
from apss_jax.schema.model import Model
from profiler.campaign import ROUND_S, Campaign
from profiler.context import LinkStart, MeasuredLinks, MeasureLinksFn, MeasuringContext
from profiler.device_types import NamedType
from profiler.document import Findings, assumed_links, check_resumes, profile_of, resumed
from profiler.facts import load_average
from profiler.kernels import NotMeasurable, Shard
from profiler.layers import unit_of
from profiler.meter import Meter
from profiler.points import (
    Axes,
    Key,
    Point,
    Subject,
    at_most_tokens,
    measured_keys,
    planned,
    subjects_of,
)
from profiler.progress import ProgressFn, no_progress

LINK_FRACTION: Final = 0.3  # of the time, where there is more than one device
GatherFn = Callable[[str], list[str]]
"""Returns a text of every process; every process calls it."""


@dataclass(frozen=True)
class Request:
    """What is to be measured, for how long, and where it goes."""

    out: Path
    models: tuple[Model, ...]
    axes: Axes
    most_tokens: int
    old: ClusterProfile | None = None  # a file to go on with


@dataclass(frozen=True)
class Bench:
    """The devices at hand, or imitated ones: what they are, and what measures them."""

    context: MeasuringContext
    types: Mapping[str, NamedType]
    type_of_node: tuple[str, ...]
    meters: tuple[Meter, ...]  # of the types that this process measures
    gather: GatherFn
    measure_links: MeasureLinksFn | None = None
    device_facts: tuple[DeviceFacts, ...] = ()
    pair_facts: tuple[PairFacts, ...] = ()
    machine: Machine | None = None
    notes: tuple[str, ...] = ()

    @property
    def devices_of_node(self) -> tuple[int, ...]:
        """Returns the number of devices of each node."""
        nodes = self.context.node_of_device
        return tuple(nodes.count(node) for node in range(self.context.num_nodes))


@dataclass
class Session:
    """A run; `profile` is what it has found so far."""

    request: Request
    bench: Bench
    progress: ProgressFn = no_progress
    _links: MeasuredLinks | None = None
    _rows: Sequence[LayerMeasurement] = ()
    _notes: tuple[str, ...] = ()

    def run(self) -> ClusterProfile:
        """Returns the profile of everything that fits into the time; the file is up to date.

        An interrupt leaves the file with all that was measured until then.
        """
        self.request = replace(self.request, old=self._shared_old())
        old = self.request.old
        self._links = self._assumed_links()
        if old is not None:
            check_resumes(old, profile_of(self._found()), str(self.request.out))
            self._links = links_of(old) if old.link_measurements else self._links
        campaigns = self._campaigns()
        try:
            self._links = self._found_links()
            self._write()
            self._measure(campaigns)
        finally:
            self._notes = tuple(note for c in campaigns for note in c.notes())
            self._rows = [
                *self._rows,
                *(r for c in campaigns for r in c.rows if r not in self._rows),
            ]
            self._write()
        return self.profile

    @property
    def profile(self) -> ClusterProfile:
        """Returns what was found so far, that of an older file included."""
        found, old = self._found(), self.request.old
        return profile_of(found if old is None else resumed(old, found))

    def _found(self) -> Findings:
        bench, machine = self.bench, self.bench.machine
        if machine is not None:
            machine = machine.model_copy(update={"load_after": load_average()})
        assert self._links is not None  # `run` begins with links
        return Findings(
            name=_name(bench),
            types=bench.types,
            type_of_node=bench.type_of_node,
            devices_of_node=bench.devices_of_node,
            links=self._links,
            subjects=self._subjects,
            rows=self._rows,
            device_facts=bench.device_facts,
            pair_facts=bench.pair_facts,
            machine=machine,
            notes=[*bench.notes, *self._notes],
        )

    @property
    def _subjects(self) -> list[Subject]:
        found = []
        for place, model in enumerate(self.request.models):
            found += [replace(s, rank=s.rank + place) for s in subjects_of(model)]
        return found

    def _shared_old(self) -> ClusterProfile | None:
        """Returns the file to go on with: that of process 0, since only it writes one."""
        old, context = self.request.old, self.bench.context
        if context.num_processes == 1:
            return old
        own = json.dumps(old.to_json()) if old is not None and context.process_index == 0 else ""
        text = self.bench.gather(own)[0]
        return ClusterProfile.from_json(json.loads(text)) if text else None

    def _assumed_links(self) -> MeasuredLinks:
        first = self.bench.types[self.bench.type_of_node[0]]
        rate = first.device_type.memory_bytes_per_s
        return assumed_links(first.library, rate, self.bench.context.num_nodes)

    def _found_links(self) -> MeasuredLinks:
        old, context = self.request.old, self.bench.context
        known = links_of(old) if old is not None else None
        if self.bench.measure_links is None or len(context.devices) < 2:
            return known if known is not None and known.measurements else self._assumed_links()
        part = replace(
            context, budget=context.budget.part(LINK_FRACTION), progress=self._link_progress
        )
        start = LinkStart(self._assumed_links(), known, self._keep_links)
        return self.bench.measure_links(part, start)

    def _keep_links(self, links: MeasuredLinks) -> None:
        self._links = links
        self._write()

    def _link_progress(self, text: str, done_fraction: float, left_s: float) -> None:
        """Shows links as the first part of the run, with the time that the whole of it has left."""
        self.progress(text, LINK_FRACTION * done_fraction, self.bench.context.budget.left_s)

    def _campaigns(self) -> list[Campaign]:
        points, unmeasurable = measurable(
            at_most_tokens(planned(self._subjects, self.request.axes), self.request.most_tokens)
        )
        self.bench = replace(self.bench, notes=(*self.bench.notes, *unmeasurable))
        watch, old = self.bench.context.stopwatch, self.request.old
        return [
            Campaign.of(
                meter,
                points,
                self.bench.context.budget,
                calls=watch.repeats + watch.warm_ups,
                known=known_points(old, meter.device_type),
                progress=self.progress,
            )
            for meter in self.bench.meters
        ]

    def _measure(self, campaigns: Sequence[Campaign]) -> None:
        """Measures in rounds, after each of which every process knows all rows."""
        alone = self.bench.context.num_processes == 1
        while True:
            new = [row for c in campaigns for row in c.round(0.0 if alone else ROUND_S)]
            is_done = all(campaign.is_done for campaign in campaigns)
            told = [json.loads(text) for text in self.bench.gather(_report(new, is_done))]
            found = [row for each in told for row in each["rows"]]
            if found:
                rows = [LayerMeasurement.model_validate_json(json.dumps(row)) for row in found]
                self._rows = [*self._rows, *rows]
                self._write()
            if all(each["is_done"] for each in told):
                return

    def _write(self) -> None:
        if self.bench.context.process_index == 0:
            write_document(self.profile, self.request.out)


def _report(rows: Sequence[LayerMeasurement], is_done: bool) -> str:
    return json.dumps({"rows": [row.model_dump(mode="json") for row in rows], "is_done": is_done})


def _name(bench: Bench) -> str:
    """Returns the shorthand of what was measured, as in 2x8xH100-SXM5-80GB."""
    nodes = list(zip(bench.devices_of_node, bench.type_of_node, strict=True))
    kinds = dict.fromkeys(nodes)
    return "+".join(f"{nodes.count(kind)}x{kind[0]}x{kind[1]}" for kind in kinds)


def known_points(old: ClusterProfile | None, device_type: str) -> frozenset[Key]:
    """Returns the points that need not be measured again."""
    return frozenset(measured_keys(old, device_type)) if old is not None else frozenset()


def measurable(points: Sequence[Point]) -> tuple[list[Point], list[str]]:
    """Returns the points that the profiler can run, and in words which it cannot."""
    kept: list[Point] = []
    said: dict[str, None] = {}
    for point in points:
        problem = _problem(point)
        if problem is None:
            kept.append(point)
        else:
            said[f"not measured: {point.subject.name}: {problem}; the datasheet stands for it"] = (
                None
            )
    return kept, list(said)


def _problem(point: Point) -> str | None:
    if point.subject.shape.part == "optimizer":
        return None
    try:
        unit_of(point.subject.shape, point.precision, Shard(point.tensor_parallel), 1, 1)
    except NotMeasurable as error:
        return str(error)
    return None


def links_of(profile: ClusterProfile) -> MeasuredLinks:
    """Returns the links of a file, node by node."""
    group_of_node = [i for i, group in enumerate(profile.nodes) for _ in range(group.count)]
    groups = [profile.nodes[i] for i in group_of_node]
    links: dict[str, Link] = dict(profile.links)
    return MeasuredLinks(
        links=links,
        intra_link_of_node=tuple(group.intra_link for group in groups),
        network_of_node=tuple(group.network for group in groups),
        measurements=profile.link_measurements,
        pair_rates=profile.pair_rates,
        bridge_of_nodes={
            (
                group_of_node.index(bridge.groups[0]),
                group_of_node.index(bridge.groups[1]),
            ): bridge.link
            for bridge in profile.bridges
        },
    )
