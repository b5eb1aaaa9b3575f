"""One survey of links: where devices stand, and what has been found out so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from apss_jax.schema.cluster import Link
from apss_jax.schema.link_measurements import LinkMeasurement, LinkSample, Operation, PairRate
from profiler.context import LinkStart, MeasuredLinks, MeasuringContext
from profiler.link_figures import Evidence, link_from
from profiler.recall import Recall
from profiler.sampling import FULL, QUICK, Ladder, Numbers, Sampler

# What is assumed of a network that nobody could measure: 10 Gbit/s Ethernet.
ASSUMED_BYTES_PER_S: Final = 1.25e9
ASSUMED_LATENCY_S: Final = 50e-6
ASSUMED_LINK: Final = "assumed-ethernet"
MEGABIT_BYTES: Final = 1e6 / 8
MOST_NAMED: Final = 12  # of what was left out; the rest is counted


class TakesSamples(Protocol):
    """Measures operations: a `Sampler`, or one that is imitated."""

    @property
    def context(self) -> MeasuringContext:
        """Returns the devices, numbered as in groups."""

    @property
    def takes_fastest(self) -> bool:
        """Returns whether the fastest of the repeats counts, not their median."""

    def measure(
        self,
        operation: Operation,
        groups: Sequence[Numbers],
        *,
        ladder: Ladder,
        essential: bool = False,
        known: Sequence[LinkSample] = (),
    ) -> LinkMeasurement:
        """Returns samples and fit of an operation over groups of devices, all of them at once."""


@dataclass
class Survey:
    """The sampler, the devices of each node, and the findings; the same on every process."""

    sampler: TakesSamples
    nodes: tuple[Numbers, ...]
    names: tuple[str, ...]
    links: dict[str, Link] = field(default_factory=dict)
    intra_of_node: dict[int, str] = field(default_factory=dict)
    network_of_node: dict[int, str] = field(default_factory=dict)
    bridges: dict[tuple[int, int], str] = field(default_factory=dict)
    # By network: what each device reaches while all devices of one pair of nodes send.
    lane_rates: dict[str, float] = field(default_factory=dict)
    measurements: list[LinkMeasurement] = field(default_factory=list)
    pair_rates: list[PairRate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start: LinkStart | None = None
    recall: Recall = field(default_factory=Recall)
    left_out: list[str] = field(default_factory=list)  # for time, in words

    @staticmethod
    def of(context: MeasuringContext, start: LinkStart | None = None) -> Survey:
        """Returns a survey of a run that has only what an older file knows."""
        nodes: list[list[int]] = [[] for _ in range(context.num_nodes)]
        for device, node in enumerate(context.node_of_device):
            nodes[node].append(device)
        names = context.node_names or tuple(f"node {i}" for i in range(len(nodes)))
        survey = Survey(Sampler(context), tuple(tuple(node) for node in nodes), names, start=start)
        survey.recall = Recall.of(start.known if start is not None else None)
        return survey

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
        known = self.recall.measurement(operation, groups)
        before = known.samples if known is not None else ()
        text = f"{operation} over {len(groups)} x {len(groups[0])} devices"
        self._tell(text)
        found = self.sampler.measure(
            operation, groups, ladder=ladder, essential=essential, known=before
        )
        found = found.model_copy(update={"link": link})
        if found.samples:
            self.measurements.append(found)
        else:
            self.left_out.append(text)
        if found.samples != before:
            self._keep()
        return found

    def pair_rate(self, sender: int, receiver: int) -> float:
        """Returns what one device reaches when it alone sends to another, NaN without time."""
        known = self.recall.pair_rate(sender, receiver)
        if known is not None:
            self.pair_rates.append(known)
            return known.bytes_per_s
        text = f"device {sender} to {receiver}"
        self._tell(text)
        found = self.sampler.measure("send", [(sender, receiver)], ladder=QUICK)
        if not found.samples:
            self.left_out.append(text)
            return float("nan")
        last = found.samples[-1]
        rate = last.message_bytes / (
            last.fastest_s if self.sampler.takes_fastest else last.median_s
        )
        size = last.message_bytes
        self.pair_rates.append(
            PairRate(sender=sender, receiver=receiver, bytes_per_s=rate, message_bytes=size)
        )
        self._keep()
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

    def found(self, *, is_done: bool) -> MeasuredLinks:
        """Returns what is known; before the survey is done, guesses stand for what is missing."""
        nodes = range(len(self.nodes))
        assumed = self.start.assumed if self.start is not None else None
        # A node of one device has no link inside; what stands in its place is never used.
        inside = {n: self.intra_of_node.get(n, self.network_of_node.get(n)) for n in nodes}
        intra = [inside[n] or _assumed(assumed, "intra_link_of_node", n) for n in nodes]
        network = [
            self.network_of_node.get(n) or _assumed(assumed, "network_of_node", n) for n in nodes
        ]
        guesses = dict(assumed.links) if assumed is not None else {}
        links = {name: guesses[name] for name in {*intra, *network} - self.links.keys()}
        links = {**self.links, **links}
        # What an older file knows beside is not lost, also if nobody asks for it any more.
        measured = [*self.measurements, *self.recall.measurements]
        return MeasuredLinks(
            links=links,
            intra_link_of_node=tuple(intra),
            network_of_node=tuple(network),
            # A link has figures once everything that they come from is measured.
            measurements=tuple(m if m.link in links else _without_link(m) for m in measured),
            pair_rates=(*self.pair_rates, *self.recall.pair_rates),
            bridge_of_nodes=dict(self.bridges),
            notes=(*self.notes, *self._unmeasured(is_done=is_done)),
        )

    def _unmeasured(self, *, is_done: bool) -> list[str]:
        if not is_done:
            return ["links are not all measured yet: a run with --resume measures the rest"]
        if not self.left_out:
            return []
        said = list(dict.fromkeys(self.left_out))
        more = f" and {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
        named = "; ".join(said[:MOST_NAMED])
        return [f"links left out for time: {named}{more}; a run with --resume measures them"]

    def _keep(self) -> None:
        if self.start is not None and self.start.keep is not None:
            self.start.keep(self.found(is_done=False))

    def _tell(self, text: str) -> None:
        context = self.sampler.context
        limit_s = context.budget.limit_s
        if context.process_index == 0 and limit_s:
            done = context.budget.spent_s / limit_s
            context.progress(f"Links: {text}", done, context.budget.left_s)


def _assumed(assumed: MeasuredLinks | None, key: str, node: int) -> str:
    assert assumed is not None  # only a survey that is not done asks
    return str(getattr(assumed, key)[node])


def _without_link(measurement: LinkMeasurement) -> LinkMeasurement:
    return measurement.model_copy(update={"link": None})


def megabits(bytes_per_s: float) -> str:
    """Returns a rate for people, in the unit that networks are sold in."""
    rate = bytes_per_s / MEGABIT_BYTES
    return f"{rate / 1000:.3g} Gbit/s" if rate >= 999.5 else f"{rate:.3g} Mbit/s"
