"""What the text of an interconnect says: a link with the rate that it states, or a known one."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from apss_jax.importers.clusters import load_link
from apss_jax.importers.library import read_library
from apss_jax.schema.cluster import Link
from apss_jax.schema.references import Network, NetworkList
from apss_jax.units import GB, GBIT

# "8x HDR200 per node", "400 Gb/s per GPU", "4x100Gb RoCE per node", "8x50 GB/s per node"
STATED: Final = re.compile(
    r"(?<![A-Za-z0-9.])(?:(?P<ports>\d+)\s*x\s*)?(?:[EHNX]DR)?(?P<rate>\d+(?:\.\d+)?)\s*"
    r"(?P<unit>GB/s|Gb/s|Gbit/s|Gbps|Gb)?[^;,()+]*?(?P<owner>per node|node-node|per GPU|/\s*GPU)"
)
ONE_PORT_BYTES_PER_S: Final = (
    100 * GBIT
)  # a node with less has one network card for all of its GPUs
TEMPLATE: Final = "hdr200"  # latency and reached fractions of a network whose rate alone is known


def network_named(text: str, device: str) -> Network | None:
    """Returns what an interconnect that states no rate means for a device, None if unknown."""
    return next(
        (
            network
            for network in _known()
            if network.device in device and re.search(network.pattern, text, re.IGNORECASE)
        ),
        None,
    )


def stated_link(text: str, devices_per_node: int) -> Link | None:
    """Returns a link at the rate that a text states per GPU or per node, None if it states none."""
    found = STATED.search(text)
    if found is None:
        return None
    in_bytes = found["unit"] == "GB/s"
    rate = float(found["rate"]) * int(found["ports"] or 1) * (GB if in_bytes else GBIT)
    of_node = found["owner"] in ("per node", "node-node")
    shared = of_node and rate <= ONE_PORT_BYTES_PER_S
    if rate <= 0:
        return None
    return load_link(TEMPLATE).model_copy(
        update={
            "bytes_per_s": rate / devices_per_node if of_node and not shared else rate,
            "shared_by_node": shared,
            "provenance": "imported",
            "source": f"stated: {text}; latency and fractions assumed like {TEMPLATE}",
        }
    )


@cache
def _known() -> tuple[Network, ...]:
    return read_library(NetworkList, "references", "networks").networks
