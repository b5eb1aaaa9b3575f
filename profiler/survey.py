"""One survey of links: where devices stand, and what has been found out so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from apss_jax.schema.cluster import Link
from apss_jax.schema.link_measurements import LinkMeasurement, Operation, PairRate
from profiler.context import MeasuringContext
from profiler.link_figures import Evidence, link_from
from profiler.sampling import FULL, QUICK, Ladder, Numbers, Sampler

# What is assumed of a network that nobody could measure: 10 Gbit/s Ethernet.
ASSUMED_BYTES_PER_S: Final = 1.25e9
ASSUMED_LATENCY_S: Final = 50e-6
ASSUMED_LINK: Final = "assumed-ethernet"


@dataclass
class Survey:
    """The sampler, the devices of each node, and the findings; the same on every process."""

    sampler: Sampler
    nodes: tuple[Numbers, ...]
    names: tuple[str, ...]
    links: dict[str, Link] = field(default_factory=dict)
    intra_of_node: dict[int, str] = field(default_factory=dict)
    network_of_node: dict[int, str] = field(default_factory=dict)
    bridges: dict[tuple[int, int], str] = field(default_factory=dict)
    measurements: list[LinkMeasurement] = field(default_factory=list)
    pair_rates: list[PairRate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def of(context: MeasuringContext) -> Survey:
        """Returns an empty survey of a run."""
        nodes: list[list[int]] = [[] for _ in range(context.num_nodes)]
        for device, node in enumerate(context.node_of_device):
            nodes[node].append(device)
        names = context.node_names or tuple(f"node {i}" for i in range(len(nodes)))
        return Survey(Sampler(context), tuple(tuple(node) for node in nodes), names)

    def measure(
        self,
        operation: Operation,
        groups: Sequence[Numbers],
        *,
        link: str | None = None,
        ladder: Ladder = FULL,
        essential: bool = False,
    ) -> LinkMeasurement:
        """Returns a measurement; it is kept where it has samples."""
        self._tell(f"Links: {operation} over {len(groups)} x {len(groups[0])} devices")
        found = self.sampler.measure(operation, groups, ladder=ladder, essential=essential)
        found = found.model_copy(update={"link": link})
        if found.samples:
            self.measurements.append(found)
        return found

    def pair_rate(self, sender: int, receiver: int) -> float:
        """Returns what one device reaches when it alone sends to another, NaN without time."""
        self._tell(f"Links: device {sender} to {receiver}")
        found = self.sampler.measure("send", [(sender, receiver)], ladder=QUICK)
        if not found.samples:
            return float("nan")
        last = found.samples[-1]
        rate = last.message_bytes / (
            last.fastest_s if self.sampler.takes_fastest else last.median_s
        )
        size = last.message_bytes
        self.pair_rates.append(
            PairRate(sender=sender, receiver=receiver, bytes_per_s=rate, message_bytes=size)
        )
        return rate

    def add_link(self, name: str, evidence: Evidence) -> None:
        """Adds a link with the figures that its evidence gives."""
        parts = [evidence.collective, evidence.transfer]
        said = [f"{m.operation} over {len(m.devices)} devices" for m in parts if m and m.samples]
        self.links[name] = link_from(evidence, f"measured: {', '.join(said)}")

    def add_scaled(self, name: str, like: str, fraction: float, why: str) -> None:
        """Adds a link that reaches a fraction of another one."""
        link = self.links[like]
        rate = fraction * link.bytes_per_s
        self.links[name] = link.model_copy(update={"bytes_per_s": rate, "source": why})

    def add_assumed(self, why: str) -> str:
        """Adds the link that is assumed where none can be measured; returns its name."""
        self.links[ASSUMED_LINK] = Link(
            bytes_per_s=ASSUMED_BYTES_PER_S, latency_s=ASSUMED_LATENCY_S, source=f"assumed: {why}"
        )
        return ASSUMED_LINK

    def note(self, text: str) -> None:
        """Keeps a remark that a person should read."""
        self.notes.append(text)

    def _tell(self, text: str) -> None:
        if self.sampler.context.process_index == 0:
            self.sampler.context.note(text)
