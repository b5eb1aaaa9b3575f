"""Hosts with their GPUs, as a hostfile, SLURM's variables or `nvidia-smi` list them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from apss_jax.importers.devices import load_device
from apss_jax.importers.nodes import Nodes, cluster_of_nodes
from apss_jax.schema.cluster import MAX_DEVICES, ClusterProfile, Device
from apss_jax.schema.errors import InputError, mistake

GPU: Final = "--gpu"
MAX_HOSTS: Final = 100_000
HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,253}")
HOST_LINE: Final = re.compile(r"(?P<host>\S+?)(?::(?P<short>\d+))?(?P<rest>(?:\s+\S+)*)\s*")
SLOTS: Final = re.compile(r"(?:slots|max_slots|max-slots|gpus)\s*=\s*(\S+)", re.IGNORECASE)
TYPE: Final = re.compile(r"type\s*=\s*(\S+)", re.IGNORECASE)
SMI_LINE: Final = re.compile(r"GPU (\d+): (.+?) \(UUID: (\S+?)\)")
TOPO_ROW: Final = re.compile(r"^\s*GPU(\d+)\s+(.*)$", re.MULTILINE)
NODE: Final = r"[\w.-]*(?:\[[\d,-]+\][\w.-]*)?"
NODE_LIST: Final = re.compile(f"{NODE}(?:,{NODE})*")
DIGITS: Final = re.compile(r"[0-9]{1,9}")
NAME_RANGE: Final = re.compile(r"([^\[\],]*)\[([^\]]+)\]([^\[\],]*)|([^\[\],]+)")


@dataclass(frozen=True)
class Host:
    """One node: its name, how many GPUs it has, and what they are called; None: not said."""

    name: str
    gpus: int | None
    gpu_name: str | None = None


@dataclass(frozen=True)
class HostList:
    """The hosts of a text in order, what kind of text it was, and what was assumed of it."""

    kind: str
    hosts: tuple[Host, ...]
    notes: tuple[str, ...] = ()
    named: bool = True  # whether the names are real


def hosts_in(text: str, *, file: str) -> HostList:
    """Returns the hosts of a text, whichever of the accepted kinds it is; raises `InputError`."""
    if SMI_LINE.search(text):
        return _of_smi_list(text)
    if re.search(r"^\s*GPU0\s+.*\bCPU Affinity|^\s*GPU0\s+X\b", text, re.MULTILINE):
        return _of_topology(text)
    if re.search(r"^\s*(?:export\s+)?SLURM_\w+=", text, re.MULTILINE):
        pairs = re.findall(r"^\s*(?:export\s+)?(SLURM_\w+)=[\"']?(.*?)[\"']?\s*$", text, re.M)
        return hosts_of_slurm(dict(pairs), file=file)
    if re.search(r"\bMiB\b|memory\.total", text):
        return _of_smi_query(text, file)
    return _of_hostfile(text, file)


def _of_hostfile(text: str, file: str) -> HostList:
    found: list[Host] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", maxsplit=1)[0].strip()
        if line:
            found.append(_host_line(line, number, file))
    if not found:
        raise mistake("(whole file)", "", "names no host", "Write lines as host slots=8", file=file)
    _refuse_twice(found, file)
    notes = [] if all(host.gpus for host in found) else ["hosts without slots= have 8 GPUs each"]
    filled = tuple(host if host.gpus else replace(host, gpus=8) for host in found)
    return HostList("hostfile", filled, tuple(notes))


def _host_line(line: str, number: int, file: str) -> Host:
    match = HOST_LINE.fullmatch(line)
    name = match["host"] if match else line
    if match is None or not HOST.fullmatch(name):
        raise mistake(f"line {number}", line, "is no host", "Write it as host slots=8", file=file)
    rest = match["rest"]
    slots = SLOTS.search(rest)
    typed = TYPE.search(rest)
    words = [word for word in rest.split() if "=" not in word]
    given = slots[1] if slots else match["short"] or (words[0] if words else None)
    if given is not None and not (re.fullmatch(r"\d{1,4}", given) and int(given)):
        rule = f"has {given} slots, which is no number of GPUs"
        raise mistake(f"line {number}", line, rule, "Write slots=8", file=file)
    return Host(name, None if given is None else int(given), typed[1] if typed else None)


def _refuse_twice(hosts: list[Host], file: str) -> None:
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            rule = "stands in the file twice"
            raise mistake(host.name, "", rule, "Write one line for each host", file=file)
        seen.add(host.name)


def hosts_of_slurm(variables: Mapping[str, str], *, file: str | None = None) -> HostList:
    """Returns the hosts of a SLURM allocation from its variables; raises `InputError`."""
    names = variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST")
    nodes = variables.get("SLURM_NNODES") or variables.get("SLURM_JOB_NUM_NODES") or ""
    if names:
        listed = _node_list(names, file)
    elif re.fullmatch(r"\d{1,6}", nodes) and 0 < int(nodes) <= MAX_HOSTS:
        listed = [f"node{i}" for i in range(int(nodes))]
    else:
        remedy = "Run it inside an allocation, or name a file with its SLURM variables"
        raise mistake("SLURM_JOB_NODELIST", "", "is not set", remedy, file=file)
    gpus, gpu_name = _slurm_gpus(variables, file)
    notes = [] if gpus else ["SLURM does not say how many GPUs a node has: 8 assumed"]
    hosts = tuple(Host(name, gpus or 8, gpu_name) for name in listed)
    return HostList("SLURM allocation", hosts, tuple(notes), named=bool(names))


def _slurm_gpus(variables: Mapping[str, str], file: str | None) -> tuple[int | None, str | None]:
    """Returns GPUs of a node and their type, where SLURM says so, as in `h100:8`."""
    typed = variables.get("SLURM_GPUS_PER_NODE", "")
    name, _, count = typed.rpartition(":")
    text = variables.get("SLURM_GPUS_ON_NODE") or count
    if not text:
        return None, name or None
    if not re.fullmatch(r"\d{1,4}", text) or not int(text):
        raise mistake("SLURM_GPUS_ON_NODE", text, "is no number of GPUs", "Correct it", file=file)
    return int(text), name.removeprefix("gpu:") or None


def _node_list(text: str, file: str | None) -> list[str]:
    """Returns the hosts of a SLURM list such as `gpu[01-03,07],login1`."""
    if not NODE_LIST.fullmatch(text):
        raise mistake("SLURM_JOB_NODELIST", text, "is no node list", "Correct it", file=file)
    found: list[str] = []
    for match in NAME_RANGE.finditer(text):
        before, inside, after, plain = match.groups()
        found += [plain] if plain else (f"{before}{n}{after}" for n in _numbers(inside, file))
        if len(found) > MAX_HOSTS:
            rule = f"names more than {MAX_HOSTS} hosts"
            raise mistake("SLURM_JOB_NODELIST", text, rule, "Correct it", file=file)
    if not found or not all(HOST.fullmatch(name) for name in found):
        raise mistake("SLURM_JOB_NODELIST", text, "is no node list", "Correct it", file=file)
    return found


def _numbers(text: str, file: str | None) -> Iterator[str]:
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        numbers = DIGITS.fullmatch(first) and (DIGITS.fullmatch(last) if dash else True)
        if not numbers or int(last or first) - int(first) > MAX_HOSTS:
            raise mistake("SLURM_JOB_NODELIST", piece, "is no range", "Correct it", file=file)
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _of_smi_list(text: str) -> HostList:
    names = [match[2] for match in SMI_LINE.finditer(text)]
    return _one_node("nvidia-smi -L", names)


def _of_smi_query(text: str, file: str) -> HostList:
    rows = [
        [cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()
    ]
    header = [cell.casefold() for cell in rows[0]]
    has_header = any("memory" in cell or cell == "name" for cell in header)
    column = header.index("name") if "name" in header else 0
    body = rows[1:] if has_header else rows
    if not body or any(len(row) <= column or not row[column] for row in body):
        remedy = "Use nvidia-smi --query-gpu=name,memory.total --format=csv"
        raise mistake("(whole file)", "", "names no GPU", remedy, file=file)
    return _one_node("nvidia-smi --query-gpu", [row[column] for row in body])


def _of_topology(text: str) -> HostList:
    """Returns one node of as many GPUs as the matrix has; it tells links, and no names."""
    rows = [cells.split() for _, cells in TOPO_ROW.findall(text)]
    body = [cells for cells in rows if "X" in cells]  # the header has no X
    links = {cell for cells in body for cell in cells[: len(body)] if cell != "X"}
    nvlinks = sorted(link for link in links if link.startswith("NV"))
    said = f"joined by {' and '.join(nvlinks) or 'no NVLink'}"
    note = f"nvidia-smi topo -m: {len(body)} GPUs {said}; their speed is the library's"
    host = Host("localhost", max(len(body), 1))
    return HostList("nvidia-smi topo -m", (host,), (note,), named=False)


def _one_node(kind: str, names: list[str]) -> HostList:
    hosts = tuple(Host("localhost", len(list(run)), name) for name, run in groupby(names))
    notes = ["one node: nvidia-smi sees no other"]
    if len(hosts) > 1:
        notes.append("its GPUs of several types are taken as one node for each type")
    return HostList(kind, hosts, tuple(notes), named=False)


def cluster_of_hosts(found: HostList, gpu: str | None, *, file: str | None) -> ClusterProfile:
    """Returns the cluster of some hosts; `gpu` names the device where the text does not."""
    total = sum(host.gpus or 0 for host in found.hosts)
    if total > MAX_DEVICES:
        rule = f"has {total} devices, more than {MAX_DEVICES}"
        raise mistake("(whole file)", "", rule, "Describe a smaller cluster", file=file)
    parts, notes = [], list(found.notes)
    for (gpus, name), run in groupby(found.hosts, lambda host: (host.gpus, host.gpu_name)):
        device = _device(name, gpu, file)
        count = len(list(run))
        parts.append(Nodes(f"{count}x{gpus}x{device.name}", count, True, gpus or 1, device))
        if name and name.casefold() != device.name.casefold():
            notes.append(f"{name!r} was taken to mean {device.name}")
    title = "+".join(part.text for part in parts)
    if gpu is not None and not all(host.gpu_name for host in found.hosts):
        notes.append(f"{GPU} {gpu}: hosts of the {found.kind} that name no GPU have this one")
    hosts = tuple(host.name for host in found.hosts) if found.named else ()
    return cluster_of_nodes(parts, title, hosts=hosts, notes=notes)


def _device(name: str | None, gpu: str | None, file: str | None) -> Device:
    if name is not None:
        return load_device(name, key="GPU", file=file)
    if gpu is None:
        raise _no_gpu(file)
    return load_device(gpu, key=GPU)


def _no_gpu(file: str | None) -> InputError:
    rule = "is missing, and nothing else says which GPU the hosts have"
    remedy = f"Add {GPU} H100-SXM5-80GB, or type=H100-SXM5-80GB to each line"
    return mistake(GPU, "", rule, remedy, file=file)


def environment() -> Mapping[str, str]:
    """Returns the process's variables that SLURM sets."""
    return {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
