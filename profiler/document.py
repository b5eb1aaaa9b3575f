"""The profile file: what a run found, put together in the form that the planner reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from apss_jax.importers.clusters import load_link
from apss_jax.schema.cluster import (
    Bridge,
    ClusterProfile,
    Device,
    DeviceType,
    LayerMeasurement,
    LayerShape,
    Link,
    NodeGroup,
)
from apss_jax.schema.errors import mistake
from apss_jax.schema.machine import DeviceFacts, Machine, PairFacts
from profiler.context import MeasuredLinks
from profiler.device_types import NamedType, with_layer_rate, with_update_rate
from profiler.points import Subject

STACK: Final = "jax"
SOURCE: Final = "measured by `python -m profiler`"
# Between devices of one host's memory, and of a network that is not there.
COPY_LATENCY_S: Final = 1e-5


@dataclass(frozen=True)
class Findings:
    """Everything that a run knows; the parts fill up while it goes on."""

    name: str
    types: Mapping[str, NamedType]
    type_of_node: tuple[str, ...]
    devices_of_node: tuple[int, ...]
    links: MeasuredLinks
    subjects: Sequence[Subject] = ()
    rows: Sequence[LayerMeasurement] = ()
    device_facts: tuple[DeviceFacts, ...] = ()
    pair_facts: tuple[PairFacts, ...] = ()
    machine: Machine | None = None
    notes: Sequence[str] = field(default_factory=tuple)


def profile_of(found: Findings) -> ClusterProfile:
    """Returns the profile of a run."""
    groups, group_of_node = node_groups(found)
    used = {row.shape for row in found.rows}
    shapes = {s.name: s.shape for s in found.subjects if s.name in used}
    return ClusterProfile(
        name=found.name,
        source=SOURCE,
        stack=STACK,
        device_types={name: _type(found, name) for name in dict.fromkeys(found.type_of_node)},
        links=dict(found.links.links),
        nodes=groups,
        bridges=tuple(
            Bridge(groups=(group_of_node[a], group_of_node[b]), link=link)
            for (a, b), link in sorted(found.links.bridge_of_nodes.items())
        ),
        shapes=shapes,
        measurements=tuple(found.rows),
        link_measurements=found.links.measurements,
        pair_rates=found.links.pair_rates,
        device_facts=found.device_facts,
        pair_facts=found.pair_facts,
        machine=found.machine,
        notes=tuple(dict.fromkeys([*found.notes, *found.links.notes])),
    )


def _type(found: Findings, name: str) -> DeviceType:
    named = found.types[name]
    parameters = {s.name: s.shape.num_parameters for s in found.subjects if s.shape.num_parameters}
    layers = {s.name for s in found.subjects if s.is_whole_layer}
    rows = [row for row in found.rows if row.device_type == name]
    updates = [row for row in rows if row.shape in parameters]
    counts = [parameters[row.shape] or 0 for row in updates]
    updated = with_update_rate(named.device_type, updates, counts)
    if named.library is not None:
        return updated
    return with_layer_rate(updated, [row for row in rows if row.shape in layers])


def node_groups(found: Findings) -> tuple[tuple[NodeGroup, ...], list[int]]:
    """Returns equal neighbouring nodes as groups, and the group of each node.

    Nodes at either end of a bridge stay apart, since a bridge joins groups.
    """
    bridged = {node for pair in found.links.bridge_of_nodes for node in pair}
    groups: list[NodeGroup] = []
    of_node: list[int] = []
    for node, device_type in enumerate(found.type_of_node):
        one = NodeGroup(
            devices=found.devices_of_node[node],
            device_type=device_type,
            intra_link=found.links.intra_link_of_node[node],
            network=found.links.network_of_node[node],
        )
        last = groups[-1] if groups else None
        alone = node in bridged or (node - 1) in bridged
        if last is not None and not alone and last.model_copy(update={"count": 1}) == one:
            groups[-1] = last.model_copy(update={"count": last.count + 1})
        else:
            groups.append(one)
        of_node.append(len(groups) - 1)
    return tuple(groups), of_node


def assumed_links(device: Device | None, copy_bytes_per_s: float, nodes: int) -> MeasuredLinks:
    """Returns links that were not measured: the library's for the device, else plain guesses.

    They are there because a file names links; a single device has nobody to send to.
    """
    if device is not None:
        names = (device.intra_link, device.network)
        links = {name: load_link(name) for name in names}
        note = f"links are not measured: those of the library for {device.name}"
    else:
        names = ("host memory", "host memory")
        rate = copy_bytes_per_s / 2  # read and written
        source = "assumed: half of what a copy moves"
        links = {names[0]: Link(bytes_per_s=rate, latency_s=COPY_LATENCY_S, source=source)}
        note = "links are not measured: as fast as a copy in memory"
    return MeasuredLinks(links, (names[0],) * nodes, (names[1],) * nodes, notes=(note,))


def check_resumes(old: ClusterProfile, new: ClusterProfile, file: str) -> None:
    """Raises `InputError` where a file is of other devices or other software than those at hand."""
    for key, told, found in (
        ("device_types", sorted(old.device_types), sorted(new.device_types)),
        ("nodes", _devices_of_nodes(old), _devices_of_nodes(new)),
        ("stack", old.stack, new.stack),
        ("machine.versions", _versions(old), _versions(new)),
    ):
        if told != found:
            rule = f"is not what is at hand: {found}"
            raise mistake(
                key, told, rule, "Name another --out, or replace it by --force", file=file
            )


def _devices_of_nodes(profile: ClusterProfile) -> list[tuple[int, str]]:
    """Returns the devices of each node; how nodes are grouped depends on what links reached."""
    return [(g.devices, g.device_type) for g in profile.nodes for _ in range(g.count)]


def _versions(profile: ClusterProfile) -> dict[str, str]:
    return profile.machine.versions if profile.machine is not None else {}


def resumed(old: ClusterProfile, found: Findings) -> Findings:
    """Returns findings with the measurements of an older file of the same devices before them."""
    known = {subject.name for subject in found.subjects}
    added = [
        Subject(name, shape, 0, is_whole_layer=_is_whole(shape))
        for name, shape in old.shapes.items()
        if name not in known
    ]
    return Findings(
        **{
            **found.__dict__,
            "subjects": [*found.subjects, *added],
            "rows": [*old.measurements, *found.rows],
        }
    )


def _is_whole(shape: LayerShape) -> bool:
    layer = shape.layer
    return layer is not None and layer.mixer is not None and layer.feed_forward is not None
