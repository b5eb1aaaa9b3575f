"""What every measurement is given: the devices, how to time, how long, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apss_jax.schema.cluster import Link
from apss_jax.schema.link_measurements import LinkMeasurement, PairRate
from profiler.budget import Budget
from profiler.timing import Stopwatch

NoteFn = Callable[[str], None]
"""Tells a person what is going on."""


def say_nothing(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class MeasuringContext:
    """The devices of one run, numbered node by node, and the means to measure them."""

    devices: tuple[Any, ...]  # jax devices of all processes
    node_of_device: tuple[int, ...]  # 0-based
    stopwatch: Stopwatch
    budget: Budget  # of this part of the run
    note: NoteFn = say_nothing
    process_index: int = 0
    num_processes: int = 1
    node_names: tuple[str, ...] = ()  # of each node; empty: they are numbered

    @property
    def num_nodes(self) -> int:
        """Returns the number of nodes."""
        return 1 + max(self.node_of_device)


@dataclass(frozen=True)
class MeasuredLinks:
    """What was found out about links: the same on every process.

    `intra_link_of_node` and `network_of_node` name keys of `links`, one for each node.
    `bridge_of_nodes` names a link between two nodes (first below second) that differs from both
    networks.
    """

    links: Mapping[str, Link]
    intra_link_of_node: tuple[str, ...]
    network_of_node: tuple[str, ...]
    measurements: tuple[LinkMeasurement, ...] = ()
    pair_rates: tuple[PairRate, ...] = ()
    bridge_of_nodes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


MeasureLinksFn = Callable[[MeasuringContext], MeasuredLinks]
"""Measures links: `profiler.links.measure_links`. Every process of a run calls it at once."""
