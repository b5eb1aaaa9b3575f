"""What the processes of a run tell each other: figures, names, where their devices stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jaxtyping import Float

MOST_NAME_BYTES: Final = 64


@dataclass(frozen=True)
class DevicePlaces:
    """All devices of a run, numbered node by node."""

    devices: tuple[Any, ...]  # of JAX
    node_of_device: tuple[int, ...]
    node_names: tuple[str, ...]


def place_devices(node_name: str) -> DevicePlaces:
    """Returns the devices of all processes; every process calls it with its own node's name.

    Devices of one kind in processes of one name share a node: a node of a profile has one type.
    Nodes stand in the order of their first process.
    """
    names = gather_names(node_name)
    devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
    places = [(names[d.process_index], str(d.device_kind)) for d in devices]
    hosts = list(dict.fromkeys(names))
    nodes = sorted(dict.fromkeys(places), key=lambda place: hosts.index(place[0]))
    by_node = sorted(range(len(devices)), key=lambda i: nodes.index(places[i]))
    return DevicePlaces(
        devices=tuple(devices[i] for i in by_node),
        node_of_device=tuple(nodes.index(places[i]) for i in by_node),
        node_names=tuple(_node_name(node, nodes) for node in nodes),
    )


def _node_name(node: tuple[str, str], nodes: Sequence[tuple[str, str]]) -> str:
    """Returns the host's name, with the kind of device where the host has several."""
    host, kind = node
    is_alone = sum(other == host for other, _ in nodes) == 1
    return host if is_alone else f"{host} ({kind})"


def gather_figures(figures: Sequence[float]) -> Float[np.ndarray, "ranks samples"]:
    """Returns the figures of every process, one row each, in FP32."""
    own = np.asarray(figures, np.float32)
    if jax.process_count() == 1:
        return own[None].astype(float)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(own)).reshape(-1, len(own)).astype(float)


def gather_names(name: str) -> list[str]:
    """Returns a name of every process; long ones are cut."""
    code = name.encode()[:MOST_NAME_BYTES].ljust(MOST_NAME_BYTES, b"\0")
    rows = gather_figures([float(byte) for byte in code])
    return [bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace") for row in rows]
