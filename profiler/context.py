"""What every measurement is given: the devices, how to time, how long, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apss_jax.schema.cluster import Link
from apss_jax.schema.link_measurements import LinkMeasurement, PairRate
from profiler.budget import Budget
from profiler.progress import ProgressFn, no_progress
from profiler.timing import Stopwatch


@dataclass(frozen=True)
class MeasuringContext:
    """The devices of one run, numbered node by node, and the means to measure them."""

    devices: tuple[Any, ...]  # jax devices of all processes
    node_of_device: tuple[int, ...]  # 0-based
    stopwatch: Stopwatch
    budget: Budget  # of this part of the run
    progress: ProgressFn = no_progress
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


KeepLinksFn = Callable[[MeasuredLinks], None]
"""Given what is known of links so far, each time that something was measured."""


@dataclass(frozen=True)
class LinkStart:
    """Where measuring links begins, the same on every process."""

    assumed: MeasuredLinks  # stands for what is not measured yet
    known: MeasuredLinks | None = None  # of an older file of the same devices
    keep: KeepLinksFn | None = None


MeasureLinksFn = Callable[[MeasuringContext, LinkStart], MeasuredLinks]
"""Measures links: `profiler.links.measure_links`. Every process of a run calls it at once."""
