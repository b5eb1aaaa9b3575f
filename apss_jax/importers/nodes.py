"""Equal nodes of one device, with what is assumed around them, as the groups of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from apss_jax.importers.devices import load_link
from apss_jax.schema.cluster import ClusterProfile, Device, NodeGroup

SMALL_NODE_DEVICES: Final = 4


@dataclass(frozen=True)
class Nodes:
    """Some equal nodes in a row; `text` is how a person wrote them."""

    text: str
    count: int
    count_given: bool
    devices: int
    device: Device


def cluster_of_nodes(
    parts: Sequence[Nodes], name: str, *, hosts: tuple[str, ...] = (), notes: Sequence[str] = ()
) -> ClusterProfile:
    """Returns the cluster of these nodes, with the library's usual links and each assumption."""
    groups = tuple(_group(part) for part in parts)
    link_names = dict.fromkeys(name for g in groups for name in (g.intra_link, g.network))
    assumed = [note for pair in zip(parts, groups, strict=True) for note in _notes(*pair)]
    return ClusterProfile(
        name=name,
        device_types={part.device.name: part.device.device_type for part in parts},
        links={name: load_link(name) for name in link_names},
        nodes=groups,
        hosts=hosts,
        notes=tuple(dict.fromkeys([*notes, *assumed])),
    )


def _group(part: Nodes) -> NodeGroup:
    device = part.device
    small = device.small_node_link if part.devices <= SMALL_NODE_DEVICES else None
    in_domain = device.devices_per_node * device.nodes_per_domain
    spans = in_domain // part.devices if device.nodes_per_domain > 1 else 1
    return NodeGroup(
        count=part.count,
        devices=part.devices,
        device_type=device.name,
        intra_link=small or device.intra_link,
        network=device.network,
        nodes_per_domain=max(1, spans),
    )


def _notes(part: Nodes, group: NodeGroup) -> list[str]:
    """Returns in words what was left open and assumed."""
    device = part.device
    assumed = f"{device.name}: assumed {group.intra_link} inside a node, {group.network} between"
    notes = [f"{assumed} nodes; a cluster file can say otherwise"]
    if device.domain_note:
        notes.append(f"{device.name}: {device.domain_note}")
    if not part.text.casefold().endswith(f"x{device.name.casefold()}"):
        notes.append(f"{part.text!r} was taken to mean {device.name}")
    if not part.count_given:
        notes.append(f"{part.text!r} was taken to mean one node of {part.devices} devices")
    if device.nodes_per_domain == 1 and part.devices > max(device.devices_per_node, 8):
        link = f"one {group.intra_link} for all {part.devices} devices of a node"
        notes.append(f"{part.text!r}: assumed {link}, more than such nodes usually have")
    return notes
