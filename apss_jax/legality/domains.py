"""Where tensor groups fit: inside nodes or scale-up domains, or over whole ones of equal size."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from jaxtyping import Int

from apss_jax.schema.cluster import ClusterProfile

Domains = tuple[int, ...]  # devices of each domain, in rank order


def domains_of(cluster: ClusterProfile) -> Domains:
    """Returns the devices of each node, or of each scale-up domain where nodes share one."""
    sizes: list[int] = []
    for group in cluster.nodes:
        whole, rest = divmod(group.count, group.nodes_per_domain)
        sizes += [group.devices * group.nodes_per_domain] * whole
        sizes += [group.devices * rest] if rest else []
    return tuple(sizes)


def domain_types_of(cluster: ClusterProfile) -> tuple[int, ...]:
    """Returns the device type of each domain, as an index into the cluster's used types."""
    found: list[int] = []
    for group in cluster.nodes:
        index = cluster.used_types.index(group.device_type)
        found += [index] * -(-group.count // group.nodes_per_domain)
    return tuple(found)


def tensor_groups(
    domains: Domains, degrees: Int[np.ndarray, " batch"]
) -> Int[np.ndarray, " batch"]:
    """Returns how many tensor groups of each degree (at least 1) fit.

    A group stays inside a domain; one that is larger than every domain consists of whole
    neighbouring domains of one size. What is left over stays idle.
    """
    found = np.zeros_like(degrees)
    larger = degrees > max(domains)
    for size, run in groupby(domains):
        count = len(list(run))
        whole = larger & (degrees % size == 0)
        spanned = np.maximum(degrees // size, 1)
        found += count * (size // degrees) + np.where(whole, count // spanned, 0)
    return found


def first_straddling(domains: Domains, devices: tuple[int, ...], degree: int) -> int | None:
    """Returns the index of the first tensor group that crosses a border, or None.

    `devices` are those of one stage, tensor groups of `degree` one after the other.
    """
    home = np.repeat(np.arange(len(domains)), domains)
    for start in range(0, len(devices), degree):
        group = devices[start : start + degree]
        used, counts = np.unique(home[list(group)], return_counts=True)
        sizes = np.array(domains)[used]
        whole = bool(np.all(counts == sizes)) and len(set(sizes.tolist())) == 1
        if len(used) > 1 and not whole:
            return start // degree
    return None
