"""A link of a profile from what was measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

from apss_jax.schema.cluster import Link
from apss_jax.schema.link_measurements import LinkMeasurement
from profiler.fit import bus_rates

ONE_WAY_CALLS: Final = {"all_reduce": 2}  # one-way collectives that an operation is made of


@dataclass(frozen=True)
class Evidence:
    """Measurements on one link; `lanes` ones ran on several devices of the same nodes at once."""

    transfer: LinkMeasurement
    collective: LinkMeasurement | None = None
    transfer_lanes: LinkMeasurement | None = None
    collective_lanes: LinkMeasurement | None = None


def link_from(evidence: Evidence, source: str) -> Link:
    """Returns the figures that the planner reads.

    The rate is what the faster of transfers and collectives reach; the fractions say what each of
    the two does. Where devices of a node share its network the rate is the node's.
    """
    shared = is_shared(evidence.transfer, evidence.transfer_lanes)
    transfer = _rate(evidence.transfer, evidence.transfer_lanes, shared=shared)
    collective = transfer
    if evidence.collective is not None and evidence.collective.samples:
        collective = _rate(evidence.collective, evidence.collective_lanes, shared=shared)
    rate = max(transfer, collective)
    latency_s = latency_of(evidence.transfer)
    return Link(
        bytes_per_s=rate,
        latency_s=latency_s,
        step_latency_s=_step_latency_s(evidence.collective),
        reached_fraction=collective / rate,
        transfer_fraction=transfer / rate,
        shared_by_node=shared,
        provenance="measured",
        source=source,
    )


def rate_of(measurement: LinkMeasurement) -> float:
    """Returns the bus bandwidth of a measurement in bytes per second, per group."""
    if measurement.fit is not None:
        return measurement.fit.bus_bytes_per_s
    rates = bus_rates(measurement.operation, len(measurement.devices), measurement.samples)
    return rates[max(rates)]


def latency_of(measurement: LinkMeasurement) -> float:
    """Returns the latency of one transfer or one-way collective in seconds."""
    calls = ONE_WAY_CALLS.get(measurement.operation, 1)
    if measurement.fit is not None:
        return measurement.fit.latency_s / calls
    return min(sample.fastest_s for sample in measurement.samples) / calls


def is_shared(alone: LinkMeasurement, lanes: LinkMeasurement | None) -> bool:
    """Returns whether devices that send at once divide one network among them.

    With k devices at once the whole is between 1 and k times what one reaches alone; below the
    geometric mean of the two the network counts as shared.
    """
    if lanes is None or not lanes.samples or lanes.concurrent_groups < 2:
        return False
    whole = lanes.concurrent_groups * rate_of(lanes)
    return whole < sqrt(lanes.concurrent_groups) * rate_of(alone)


def _rate(alone: LinkMeasurement, lanes: LinkMeasurement | None, *, shared: bool) -> float:
    """Returns a node's rate where it is shared, else a device's while others send too."""
    if lanes is None or not lanes.samples:
        return rate_of(alone)
    if shared:
        return max(rate_of(alone), lanes.concurrent_groups * rate_of(lanes))
    return rate_of(lanes)


def _step_latency_s(collective: LinkMeasurement | None) -> float | None:
    """Returns the latency of each step from node to node of a one-way ring, if measured."""
    if collective is None or not collective.samples:
        return None
    return latency_of(collective) / (len(collective.devices) - 1)
