"""Profiles of parts of a cluster, measured apart, as one profile; what contradicts is named.

Nodes stand in the order of the files, and with them the numbers of devices. Links and shapes are
local names: two files may use one name for different things, which then get names of their own.
Device types, the stack and points measured twice are not local: where files contradict each other
there, a person must say which file holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from apss_jax.schema.cluster import (
    ClusterProfile,
    DeviceType,
    LayerMeasurement,
    LayerShape,
    Link,
    NodeGroup,
)
from apss_jax.schema.document import Part
from apss_jax.schema.errors import InputError, Mistake, mistake, shorten
from profiler.joints import Joint, first_numbers, joined

Keep = Literal["first", "last"]
PartT = TypeVar("PartT", bound=Part)

KEEP: Final = "--keep"
SAME_TIME_FRACTION: Final = 0.05  # two measurements of one point this close do not contradict


@dataclass(frozen=True)
class Source:
    """A profile and the file it was read from."""

    file: str
    profile: ClusterProfile


def merge_profiles(
    sources: Sequence[Source], joints: Sequence[Joint] = (), *, keep: Keep | None = None
) -> ClusterProfile:
    """Returns one profile; raises `InputError` naming every contradiction that `keep` leaves open.

    `keep` says which file holds where two contradict each other: the first or the last.
    """
    _refuse_same_device_twice(sources)
    conflicts: list[Mistake] = []
    types = _merged_types(sources, keep, conflicts)
    stack = _merged_stack(sources, keep, conflicts)
    renamed = [_with_own_names(sources, i) for i in range(len(sources))]
    rows = _merged_rows(sources, renamed, keep, conflicts)
    if conflicts:
        raise InputError(conflicts)
    links, bridges, notes = joined([source.file for source in sources], renamed, joints)
    return ClusterProfile(
        name="+".join(profile.name for profile in renamed),
        source="; ".join(dict.fromkeys(p.source for p in renamed if p.source)) or None,
        stack=stack,
        device_types=types,
        links=links,
        nodes=tuple(group for profile in renamed for group in profile.nodes),
        bridges=bridges,
        shapes={name: shape for profile in renamed for name, shape in profile.shapes.items()},
        measurements=rows,
        notes=tuple(dict.fromkeys([*(n for p in renamed for n in p.notes), *notes])),
        **_renumbered(renamed),
    )


def _refuse_same_device_twice(sources: Sequence[Source]) -> None:
    seen: dict[str, str] = {}
    for source in sources:
        for facts in source.profile.device_facts:
            if facts.uuid is not None and facts.uuid in seen:
                rule = f"is in {seen[facts.uuid]} too: it cannot stand in the cluster twice"
                remedy = "Merge profiles of different nodes"
                raise mistake("device_facts.uuid", facts.uuid, rule, remedy, file=source.file)
        seen |= {f.uuid: source.file for f in source.profile.device_facts if f.uuid is not None}


def _merged_types(
    sources: Sequence[Source], keep: Keep | None, conflicts: list[Mistake]
) -> dict[str, DeviceType]:
    found: dict[str, tuple[Source, DeviceType]] = {}
    for source in sources:
        for name, device in source.profile.device_types.items():
            if name in found and found[name][1] != device and keep is None:
                conflicts += _differences(
                    f"device_types.{name}", found[name][0], found[name][1], source, device
                )
            if name not in found or keep == "last":
                found[name] = (source, device)
    return {name: device for name, (_, device) in found.items()}


def _differences(key: str, one: Source, ours: Part, other: Source, theirs: Part) -> list[Mistake]:
    """Returns a mistake for each field in which two parts differ."""
    a, b = ours.model_dump(mode="json"), theirs.model_dump(mode="json")
    return [
        _conflict(f"{key}.{field}", other, b[field], one, a[field])
        for field in a
        if a[field] != b[field] and field != "source"
    ]


def _conflict(key: str, source: Source, value: Any, other: Source, their_value: Any) -> Mistake:
    rule = f"contradicts {other.file}, which has {shorten(their_value)}"
    remedy = f"Correct one file, or say which holds with {KEEP} first or {KEEP} last"
    return Mistake(source.file, key, shorten(value), rule, remedy)


def _merged_stack(
    sources: Sequence[Source], keep: Keep | None, conflicts: list[Mistake]
) -> str | None:
    told = [source for source in sources if source.profile.stack is not None]
    for source in told[1:]:
        if source.profile.stack != told[0].profile.stack and keep is None:
            stacks = source.profile.stack, told[0].profile.stack
            conflicts.append(_conflict("stack", source, stacks[0], told[0], stacks[1]))
    if not told:
        return None
    return told[-1 if keep == "last" else 0].profile.stack


def _with_own_names(sources: Sequence[Source], index: int) -> ClusterProfile:
    """Returns a profile whose links and shapes have names that mean nothing else before it."""
    profile = sources[index].profile
    before = [source.profile for source in sources[:index]]
    links = _own_names(profile.links, [one.links for one in before], index)
    shapes = _own_names(profile.shapes, [one.shapes for one in before], index)
    return profile.model_copy(
        update={
            "links": {links[name]: link for name, link in profile.links.items()},
            "shapes": {shapes[name]: shape for name, shape in profile.shapes.items()},
            "nodes": tuple(_group_with(group, links) for group in profile.nodes),
            "bridges": tuple(b.model_copy(update={"link": links[b.link]}) for b in profile.bridges),
            "measurements": tuple(
                row.model_copy(update={"shape": shapes[row.shape]}) for row in profile.measurements
            ),
            "link_measurements": tuple(
                m.model_copy(update={"link": links[m.link] if m.link else None})
                for m in profile.link_measurements
            ),
        }
    )


def _own_names(
    values: Mapping[str, Link] | Mapping[str, LayerShape],
    before: Sequence[Mapping[str, Link] | Mapping[str, LayerShape]],
    index: int,
) -> dict[str, str]:
    names = {}
    for name, value in values.items():
        is_taken = any(name in other and other[name] != value for other in before)
        names[name] = f"{name}@{index + 1}" if is_taken else name
    return names


def _group_with(group: NodeGroup, links: Mapping[str, str]) -> NodeGroup:
    return group.model_copy(
        update={"intra_link": links[group.intra_link], "network": links[group.network]}
    )


def _merged_rows(
    sources: Sequence[Source],
    renamed: Sequence[ClusterProfile],
    keep: Keep | None,
    conflicts: list[Mistake],
) -> tuple[LayerMeasurement, ...]:
    found: dict[tuple[Any, ...], tuple[Source, LayerMeasurement]] = {}
    for source, profile in zip(sources, renamed, strict=True):
        for i, row in enumerate(profile.measurements):
            point = _point(row)
            if point in found and not _agree(found[point][1], row) and keep is None:
                one, other = found[point]
                key = f"measurements.{i}.forward_s"
                conflicts.append(_conflict(key, source, row.forward_s, one, other.forward_s))
            if point not in found or keep == "last":
                found[point] = (source, row)
    return tuple(row for _, row in found.values())


def _point(row: LayerMeasurement) -> tuple[Any, ...]:
    return (
        row.shape,
        row.device_type,
        row.tensor_parallel,
        row.micro_batch,
        row.seq_len,
        row.precision,
        row.recompute,
        row.tensor_comm_included,
    )


def _agree(one: LayerMeasurement, other: LayerMeasurement) -> bool:
    return abs(one.forward_s / other.forward_s - 1) <= SAME_TIME_FRACTION


def _renumbered(profiles: Sequence[ClusterProfile]) -> dict[str, Any]:
    """Returns what names devices, with the numbers that they have in the whole."""
    devices = first_numbers([profile.num_devices for profile in profiles])
    nodes = first_numbers([sum(g.count for g in profile.nodes) for profile in profiles])
    found: dict[str, list[Any]] = {
        "link_measurements": [],
        "pair_rates": [],
        "device_facts": [],
        "pair_facts": [],
    }
    for profile, device, node in zip(profiles, devices, nodes, strict=True):
        for measurement in profile.link_measurements:
            moved = tuple(d + device for d in measurement.devices)
            found["link_measurements"].append(_with(measurement, devices=moved))
        for rate in profile.pair_rates:
            ends = {"sender": rate.sender + device, "receiver": rate.receiver + device}
            found["pair_rates"].append(_with(rate, **ends))
        for facts in profile.device_facts:
            moved_facts = _with(facts, device=facts.device + device, node=facts.node + node)
            found["device_facts"].append(moved_facts)
        for pair in profile.pair_facts:
            both = (pair.devices[0] + device, pair.devices[1] + device)
            found["pair_facts"].append(_with(pair, devices=both))
    return {key: tuple(values) for key, values in found.items()}


def _with(part: PartT, **changes: Any) -> PartT:
    return part.model_copy(update=changes)
