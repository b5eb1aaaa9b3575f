"""Clusters by library name, by file, and by shorthand such as `4x8xH100-SXM5-80GB`; stacks too."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from apss_jax.importers.library import (
    is_there,
    library_aliases,
    library_match,
    library_names,
    looks_like_path,
    read_library,
    unknown_name,
)
from apss_jax.schema.cluster import (
    MAX_DEVICES,
    ClusterProfile,
    Device,
    Link,
    LinkFile,
    NodeGroup,
)
from apss_jax.schema.document import read_document
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.stack import Stack

SMALL_NODE_DEVICES: Final = 4
KEY: Final = "--cluster"
FORM: Final = "Write nodes x GPUs x device, as in 4x8xH100-SXM5-80GB; join several with +"
PART: Final = re.compile(r"(?:([+-]?\d+)x)?([+-]?\d+)x(\S.*)", re.IGNORECASE)
REMARK: Final = re.compile(r"\s*\(.*\)$")  # "H100-SXM5-80GB (700W)"


@dataclass(frozen=True)
class _Part:
    """One piece of shorthand: equal nodes of one device."""

    text: str
    nodes: int
    nodes_given: bool
    devices: int
    device: Device


def list_clusters() -> tuple[str, ...]:
    """Returns the names of the shipped clusters."""
    return library_names("clusters")


def list_devices() -> tuple[str, ...]:
    """Returns the names of the known device types, aliases apart."""
    return library_names("devices")


def list_stacks() -> tuple[str, ...]:
    """Returns the names of the shipped stacks."""
    return library_names("stacks")


def load_device(name: str, *, key: str = KEY) -> Device:
    """Returns a device type by name or alias, in any case; raises `InputError`.

    A remark in parentheses after the name is ignored.
    """
    plain = REMARK.sub("", name.strip())
    found = library_match("devices", plain) or library_aliases("devices").get(plain.casefold())
    if found is None:
        hint = "Or describe it in a cluster file."
        aliases = [alias.upper() for alias in library_aliases("devices")]
        raise unknown_name(key, name, "device", list_devices(), hint, aliases)
    return read_library(Device, "devices", found)


def load_link(name: str) -> Link:
    """Returns a link of the library by its exact name."""
    return read_library(LinkFile, "links", name).link


def load_stack(name_or_path: str | os.PathLike[str]) -> Stack:
    """Returns a stack by library name or from a file; raises `InputError`."""
    text = _text(name_or_path, "--stack")
    found = None if looks_like_path(text) else library_match("stacks", text)
    if found is not None:
        return read_library(Stack, "stacks", found)
    if looks_like_path(text) or is_there(text):
        return read_document(Stack, text)
    raise unknown_name("--stack", text, "stack", list_stacks(), "Or name a stack file.")


def load_cluster(spec: str | os.PathLike[str]) -> ClusterProfile:
    """Returns a cluster by library name, profile file, or shorthand; raises `InputError`.

    Shorthand is nodes x GPUs x device, several joined by `+`; `8xH100` is one node of 8.
    """
    text = _text(spec, KEY)
    if looks_like_path(text):
        return read_document(ClusterProfile, text)
    found = library_match("clusters", text)
    if found is not None:
        return read_library(ClusterProfile, "clusters", found)
    if "+" in text or PART.fullmatch(text):
        return _from_shorthand(text)
    if is_there(text):
        return read_document(ClusterProfile, text)
    raise _no_such_cluster(text)


def _text(spec: str | os.PathLike[str], key: str) -> str:
    if not isinstance(spec, str | os.PathLike):
        raise mistake(key, spec, "must be a name or a path", "Give a library name or a file")
    text = os.fspath(spec).strip()
    if not text:
        raise mistake(key, "''", "is empty", "Give a library name or a file")
    return text


def _no_such_cluster(text: str) -> InputError:
    device = library_match("devices", text) or library_aliases("devices").get(text.casefold())
    if device is not None:
        rule = "is a device, not a cluster"
        return mistake(KEY, text, rule, f"Say how many nodes and GPUs: 1x8x{device}")
    return unknown_name(KEY, text, "cluster", list_clusters(), f"{FORM}.")


def _from_shorthand(text: str) -> ClusterProfile:
    parts = [_parsed(piece.strip(), text) for piece in text.split("+")]
    total = sum(part.nodes * part.devices for part in parts)
    if total > MAX_DEVICES:
        rule = f"has {total} devices, more than {MAX_DEVICES}"
        raise mistake(KEY, text, rule, "Describe a smaller cluster")
    groups = tuple(_group(part) for part in parts)
    link_names = dict.fromkeys(name for g in groups for name in (g.intra_link, g.network))
    notes = [note for pair in zip(parts, groups, strict=True) for note in _notes(*pair)]
    return ClusterProfile(
        name=text,
        device_types={part.device.name: part.device.device_type for part in parts},
        links={name: load_link(name) for name in link_names},
        nodes=groups,
        notes=tuple(dict.fromkeys(notes)),
    )


def _parsed(piece: str, text: str) -> _Part:
    match = PART.fullmatch(piece)
    if match is None:
        shown = repr(piece) if piece else "an empty part"
        raise mistake(KEY, text, f"has {shown}, which is not nodes x GPUs x device", FORM)
    nodes = _count(match[1] or "1", "nodes", text)
    devices = _count(match[2], "GPUs in a node", text)
    return _Part(piece, nodes, match[1] is not None, devices, load_device(match[3]))


def _count(digits: str, what: str, text: str) -> int:
    if len(digits) > len(str(MAX_DEVICES)):
        rule = f"has a number of {what} of {len(digits)} digits"
        raise mistake(KEY, text, rule, f"At most {MAX_DEVICES} devices are planned for")
    if int(digits) < 1:
        raise mistake(KEY, text, f"has {int(digits)} {what}", "Both counts must be at least 1")
    return int(digits)


def _group(part: _Part) -> NodeGroup:
    device = part.device
    small = device.small_node_link if part.devices <= SMALL_NODE_DEVICES else None
    in_domain = device.devices_per_node * device.nodes_per_domain
    spans = in_domain // part.devices if device.nodes_per_domain > 1 else 1
    return NodeGroup(
        count=part.nodes,
        devices=part.devices,
        device_type=device.name,
        intra_link=small or device.intra_link,
        network=device.network,
        nodes_per_domain=max(1, spans),
    )


def _notes(part: _Part, group: NodeGroup) -> list[str]:
    """Returns in words what the shorthand leaves open and was assumed."""
    device = part.device
    assumed = f"{device.name}: assumed {group.intra_link} inside a node, {group.network} between"
    notes = [f"{assumed} nodes; a cluster file can say otherwise"]
    if device.domain_note:
        notes.append(f"{device.name}: {device.domain_note}")
    if not part.text.casefold().endswith(f"x{device.name.casefold()}"):
        notes.append(f"{part.text!r} was taken to mean {device.name}")
    if not part.nodes_given:
        notes.append(f"{part.text!r} was taken to mean one node of {part.devices} devices")
    if device.nodes_per_domain == 1 and part.devices > max(device.devices_per_node, 8):
        link = f"one {group.intra_link} for all {part.devices} devices of a node"
        notes.append(f"{part.text!r}: assumed {link}, more than such nodes usually have")
    return notes
