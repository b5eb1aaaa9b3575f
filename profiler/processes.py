"""What the processes of a run tell each other: figures, names, where their devices stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import jax
import numpy as np
from jaxtyping import Float

MOST_NAME_BYTES: Final = 64


@dataclass(frozen=True)
class DevicePlaces:
    """All devices of a run, numbered node by node."""

    devices: tuple[jax.Device, ...]
    node_of_device: tuple[int, ...]
    node_names: tuple[str, ...]


def place_devices(node_name: str) -> DevicePlaces:
    """Returns the devices of all processes; every process calls it with its own node's name.

    Processes of one name share a node; nodes stand in the order of their first process.
    """
    names = gather_names(node_name)
    nodes = list(dict.fromkeys(names))
    devices = sorted(
        jax.devices(), key=lambda d: (nodes.index(names[d.process_index]), d.process_index, d.id)
    )
    node_of_device = tuple(nodes.index(names[d.process_index]) for d in devices)
    return DevicePlaces(tuple(devices), node_of_device, tuple(nodes))


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
