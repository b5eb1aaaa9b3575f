"""Clusters by name, file, shorthand such as `4x8xH100-SXM5-80GB`, or list of hosts; stacks too."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from apss_jax.importers.devices import list_devices, load_device, load_link
from apss_jax.importers.hosts import GPU, cluster_of_hosts, environment, hosts_in, hosts_of_slurm
from apss_jax.importers.library import (
    is_there,
    library_aliases,
    library_match,
    library_names,
    looks_like_path,
    read_library,
    unknown_name,
)
from apss_jax.importers.nodes import Nodes, cluster_of_nodes
from apss_jax.schema.cluster import MAX_DEVICES, ClusterProfile
from apss_jax.schema.document import read_document, read_text
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.stack import Stack

__all__ = [  # devices and links are asked for here, wherever they are kept
    "list_clusters",
    "list_devices",
    "list_stacks",
    "load_cluster",
    "load_device",
    "load_link",
    "load_stack",
]
KEY: Final = "--cluster"
SLURM: Final = "slurm"
FORM: Final = "Write nodes x GPUs x device, as in 4x8xH100-SXM5-80GB; join several with +"
PART: Final = re.compile(r"(?:([+-]?\d+)x)?([+-]?\d+)x(\S.*)", re.IGNORECASE)


def list_clusters() -> tuple[str, ...]:
    """Returns the names of the shipped clusters."""
    return library_names("clusters")


def list_stacks() -> tuple[str, ...]:
    """Returns the names of the shipped stacks."""
    return library_names("stacks")


def load_stack(name_or_path: str | os.PathLike[str]) -> Stack:
    """Returns a stack by library name or from a file; raises `InputError`."""
    text = _text(name_or_path, "--stack")
    found = None if looks_like_path(text) else library_match("stacks", text)
    if found is not None:
        return read_library(Stack, "stacks", found)
    if looks_like_path(text) or is_there(text):
        return read_document(Stack, text)
    raise unknown_name("--stack", text, "stack", list_stacks(), "Or name a stack file.")


def load_cluster(spec: str | os.PathLike[str], *, gpu: str | None = None) -> ClusterProfile:
    """Returns a cluster by library name, file, shorthand, or list of hosts; raises `InputError`.

    Shorthand is nodes x GPUs x device, several joined by `+`; `8xH100` is one node of 8. A file is
    a profile, a hostfile, SLURM's variables, or what `nvidia-smi` prints; `slurm` means the
    allocation that this process runs in. `gpu` names the device where hosts alone are listed.
    """
    text = _text(spec, KEY)
    if not looks_like_path(text):
        found = library_match("clusters", text)
        if found is not None:
            return _without_gpu(read_library(ClusterProfile, "clusters", found), gpu)
        if "+" in text or PART.fullmatch(text):
            return _without_gpu(_from_shorthand(text), gpu)
        if text.lower() == SLURM:
            return cluster_of_hosts(hosts_of_slurm(environment()), gpu, file=None)
        if not is_there(text):
            raise _no_such_cluster(text)
    return _from_file(text, gpu)


def _from_file(path: str, gpu: str | None) -> ClusterProfile:
    """Returns the profile in a JSON file, or the hosts that another text lists."""
    text = "{" if path.lower().endswith(".json") else read_text(Path(path), path)
    if text.lstrip().startswith(("{", "[")):
        return _without_gpu(read_document(ClusterProfile, path), gpu)
    return cluster_of_hosts(hosts_in(text, file=path), gpu, file=path)


def _without_gpu(cluster: ClusterProfile, gpu: str | None) -> ClusterProfile:
    """Returns the cluster; raises `InputError` for a GPU beside one that names its own."""
    if gpu is not None:
        rule = "stands beside a cluster that says which devices it has"
        raise mistake(GPU, gpu, rule, f"Leave {GPU} out, or give hosts alone")
    return cluster


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
    total = sum(part.count * part.devices for part in parts)
    if total > MAX_DEVICES:
        rule = f"has {total} devices, more than {MAX_DEVICES}"
        raise mistake(KEY, text, rule, "Describe a smaller cluster")
    return cluster_of_nodes(parts, text)


def _parsed(piece: str, text: str) -> Nodes:
    match = PART.fullmatch(piece)
    if match is None:
        shown = repr(piece) if piece else "an empty part"
        raise mistake(KEY, text, f"has {shown}, which is not nodes x GPUs x device", FORM)
    nodes = _count(match[1] or "1", "nodes", text)
    devices = _count(match[2], "GPUs in a node", text)
    return Nodes(piece, nodes, match[1] is not None, devices, load_device(match[3]))


def _count(digits: str, what: str, text: str) -> int:
    if len(digits) > len(str(MAX_DEVICES)):
        rule = f"has a number of {what} of {len(digits)} digits"
        raise mistake(KEY, text, rule, f"At most {MAX_DEVICES} devices are planned for")
    if int(digits) < 1:
        raise mistake(KEY, text, f"has {int(digits)} {what}", "Both counts must be at least 1")
    return int(digits)
