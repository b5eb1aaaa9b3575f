"""Profiles of parts of a cluster, measured apart, as one profile; what contradicts is named.

Nodes stand in the order of the files, and with them the numbers of devices. Links and shapes are
local names: two files may use one name for different things, which then get names of their own.
Device types, the stack and points measured twice are not local: where files contradict each other
there, a person must say which file holds. Rates that a run measures differ from run to run: those
of one file are kept, and a note names the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
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
from profiler.points import key_of

Keep = Literal["first", "last"]
PartT = TypeVar("PartT", bound=Part)

KEEP: Final = "--keep"
SAME_FRACTION: Final = 0.05  # two measurements of one point this close do not contradict
MEASURED: Final = ("forward_s", "backward_s", "saved_bytes", "peak_bytes")  # of a point


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
    said = _rate_notes(sources, types)
    stack = _merged_stack(sources, keep, conflicts)
    renamed = _with_own_names(sources)
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
        notes=tuple(dict.fromkeys([*(n for p in renamed for n in p.notes), *notes, *said])),
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


def _differences(
    key: str, one: Source, ours: DeviceType, other: Source, theirs: DeviceType
) -> list[Mistake]:
    """Returns a mistake for each field in which two types differ, what runs measure left out."""
    a, b = _fields(ours), _fields(theirs)
    return [
        _conflict(f"{key}.{field}", other, b[field], one, a[field])
        for field in a
        if a[field] != b[field] and field not in ("source", "rates.source", *_run_rates(ours))
    ]


def _fields(device: DeviceType) -> dict[str, Any]:
    """Returns the values of a type by key, its rates each by their own."""
    values = device.model_dump(mode="json")
    rates = values.pop("rates")
    return values | {f"rates.{name}": value for name, value in rates.items()}


def _run_rates(device: DeviceType) -> tuple[str, ...]:
    """Returns which rates each run measures anew: of a probed type what layers reach, too."""
    probed = ("rates.gemm_fraction",) if device.provenance == "measured" else ()
    return ("rates.memory_fraction", *probed)


def _rate_notes(sources: Sequence[Source], types: Mapping[str, DeviceType]) -> list[str]:
    """Returns in words each rate of a file that differs from the one that is kept."""
    return [
        f"{source.file}: device_types.{name}.{key} is {_fields(device)[key]:.4g}; "
        f"that of another file is kept, {_fields(types[name])[key]:.4g}"
        for source in sources
        for name, device in source.profile.device_types.items()
        for key in _run_rates(device)
        if _fields(device)[key] != _fields(types[name])[key]
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


def _with_own_names(sources: Sequence[Source]) -> list[ClusterProfile]:
    """Returns the profiles with links and shapes whose names mean nothing else in any of them."""
    renamed: list[ClusterProfile] = []
    for source in sources:
        profile = source.profile
        links = _own_names(profile.links, [one.links for one in renamed], len(renamed))
        shapes = _own_names(profile.shapes, [one.shapes for one in renamed], len(renamed))
        renamed.append(_renamed(profile, links, shapes))
    return renamed


def _renamed(
    profile: ClusterProfile, links: Mapping[str, str], shapes: Mapping[str, str]
) -> ClusterProfile:
    """Returns a profile with other names for its links and shapes."""
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
    """Returns a name for each value that nothing else has; equal values before share theirs."""
    names: dict[str, str] = {}
    for name, value in values.items():
        # A merged file may hold names that end like ours: those of the file itself are taken too.
        taken = {n for other in before for n, known in other.items() if known != value}
        taken |= (values.keys() - {name}) | set(names.values())
        names[name] = next(n for n in _candidates(name, index) if n not in taken)
    return names


def _candidates(name: str, index: int) -> Iterator[str]:
    """Returns the name, then the name with the number of its file and with further ones."""
    yield name
    for number in itertools.count(index + 1):
        yield f"{name}@{number}"


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
            if point in found and keep is None:
                conflicts += _contradictions(f"measurements.{i}", source, row, *found[point])
            if point not in found or keep == "last":
                found[point] = (source, row)
    return tuple(row for _, row in found.values())


def _point(row: LayerMeasurement) -> tuple[Any, ...]:
    return (row.device_type, row.tensor_comm_included, key_of(row))


def _contradictions(
    key: str, source: Source, row: LayerMeasurement, one: Source, other: LayerMeasurement
) -> list[Mistake]:
    """Returns a mistake for each figure of a point that two files have and that differs."""
    pairs = [(field, getattr(row, field), getattr(other, field)) for field in MEASURED]
    return [
        _conflict(f"{key}.{field}", source, mine, one, theirs)
        for field, mine, theirs in pairs
        if mine is not None and theirs is not None
        if abs(mine - theirs) > SAME_FRACTION * theirs
    ]


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
