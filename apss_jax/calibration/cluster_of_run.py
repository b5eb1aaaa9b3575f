"""The cluster that a run ran on: equal nodes of one device, or a cluster that the text names."""

from __future__ import annotations

from functools import cache
from typing import Final

from apss_jax.calibration.gaps import Gaps, UnusableRunError, require
from apss_jax.importers.clusters import load_cluster, load_device, load_link
from apss_jax.importers.library import library_aliases
from apss_jax.importers.networks import network_named, stated_link
from apss_jax.schema.cluster import ClusterProfile, Device, Link, NodeGroup
from apss_jax.schema.errors import InputError
from apss_jax.schema.runs import Run

SMALL_NODE_DEVICES: Final = 4  # nodes of at most so many have the device's small-node link


def cluster_of_run(run: Run, gaps: Gaps) -> ClusterProfile:
    """Returns the cluster, as many devices as the run had; raises `UnusableRunError`."""
    name = require(run.gpu_model, "no GPU")
    devices = require(run.num_gpus, "no number of GPUs")
    known = network_named(run.interconnect, name) if run.interconnect else None
    if known is not None and known.cluster is not None:
        profile = _profile(known.cluster)
        if profile.num_devices == devices:
            return profile
    device = _device(name, run.gpu_mem_gib)
    if device is None:
        raise UnusableRunError("GPU not in the library")
    if not device.device_type.peak_flops_per_s:
        gaps.assume("peak_flops")
    per_node = gaps.fill("gpus_per_node", run.gpus_per_node, device.devices_per_node)
    several = devices > per_node * device.nodes_per_domain
    if several and _is_silent(run.interconnect, device, per_node):
        gaps.assume("interconnect")
    return _cluster(device.name, devices, per_node, run.interconnect or "")


def _is_silent(interconnect: str | None, device: Device, per_node: int) -> bool:
    """Returns whether the text leaves the network between nodes open."""
    text = interconnect or ""
    return stated_link(text, per_node) is None and network_named(text, device.name) is None


@cache
def _profile(name: str) -> ClusterProfile:
    return load_cluster(name)


@cache
def _device(name: str, memory_gib: float | None) -> Device | None:
    """Returns the device; of a name that stands for several, the one with that memory."""
    plain = name.split(" (", maxsplit=1)[0]
    names = [name]
    if memory_gib is not None and plain.casefold() in library_aliases("devices"):
        names.insert(0, f"{plain}-{memory_gib:g}GB")
    for each in names:
        try:
            return load_device(each)
        except InputError:
            continue
    return None


@cache  # one object for equal clusters, so that runs can be grouped by it
def _cluster(name: str, devices: int, per_node: int, interconnect: str) -> ClusterProfile:
    device = _device(name, None)
    if device is None:
        raise UnusableRunError("GPU not in the library")
    network, network_link = _network(device, per_node, interconnect)
    sizes = [(devices // per_node, per_node), (1, devices % per_node)]
    groups = tuple(_group(device, n, size, network) for n, size in sizes if n and size)
    inside = {group.intra_link: load_link(group.intra_link) for group in groups}
    kind = device.device_type
    if not kind.peak_flops_per_s:
        # A variant whose peak is not published: that of the family's usual member.
        usual = load_device(name.split("-", maxsplit=1)[0]).device_type
        kind = kind.model_copy(update={"peak_flops_per_s": usual.peak_flops_per_s})
    return ClusterProfile(
        name=f"{devices} x {name}",
        device_types={name: kind},
        links={**inside, network: network_link},
        nodes=groups,
    )


def _network(device: Device, per_node: int, interconnect: str) -> tuple[str, Link]:
    stated = stated_link(interconnect, per_node)
    if stated is not None:
        return "stated network", stated
    known = network_named(interconnect, device.name)
    link = known.link if known is not None and known.link else device.network
    return link, load_link(link)


def _group(device: Device, count: int, size: int, network: str) -> NodeGroup:
    small = device.small_node_link if size <= SMALL_NODE_DEVICES else None
    in_domain = device.devices_per_node * device.nodes_per_domain
    spanned = max(1, in_domain // size) if device.nodes_per_domain > 1 else 1
    return NodeGroup(
        count=count,
        devices=size,
        device_type=device.name,
        intra_link=small or device.intra_link,
        network=network,
        nodes_per_domain=_equal_part(count, spanned),
    )


def _equal_part(nodes: int, most: int) -> int:
    """Returns how many nodes of each domain a run takes: equally many, as schedulers place them.

    Of 18 nodes in a rack a run on 64 nodes takes 16, or a stage of it would lie across two racks.
    """
    return next(part for part in range(most, 0, -1) if nodes <= most or nodes % part == 0)
