"""What a person should be warned of before relying on a profile."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from apss_jax.importers.clusters import load_device, load_link
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement
from apss_jax.schema.errors import InputError
from apss_jax.schema.link_measurements import PairRate
from apss_jax.units import GB, GIB

HARMLESS: Final = ("idle", "clocks set by the user", "display clocks")
NOISY_FRACTION: Final = 0.2
SLOW_PAIR_FACTOR: Final = 1.5
SHORTFALL_FACTOR: Final = 3.0  # of a link below what the library says of its kind
LOADED_FRACTION: Final = 0.25  # of the cores busy before the profiler began
MOST_NAMED: Final = 5


def warnings_of(profile: ClusterProfile) -> list[str]:
    """Returns the warnings, the gravest first."""
    return [
        *_mocked(profile),
        *_throttled(profile),
        *_slow_pairs(profile),
        *_short_links(profile),
        *_narrow_slots(profile),
        *_noisy(profile),
        *_noisy_links(profile),
        *_under_load(profile),
        *_shared_memory(profile),
        *_chosen_adapters(profile),
    ]


def _mocked(profile: ClusterProfile) -> Iterator[str]:
    mocked = sum(row.provenance == "mocked" for row in profile.measurements)
    if mocked:
        yield f"{mocked} of {len(profile.measurements)} layer times are mocked: nothing ran"


def _throttled(profile: ClusterProfile) -> Iterator[str]:
    rows = sorted(profile.measurements, key=lambda row: row.device_type)
    for device_type, group in groupby(rows, key=lambda row: row.device_type):
        known = [row for row in group if row.state and row.state.throttle_reasons is not None]
        slowed = [row for row in known if _harmful(row)]
        if not slowed:
            continue
        reasons = dict.fromkeys(reason for row in slowed for reason in _harmful(row))
        yield (
            f"{device_type} was throttled in {len(slowed)} of {len(known)} measurements "
            f"({', '.join(reasons)}){_lowest_clock(slowed)}"
        )


def _harmful(row: LayerMeasurement) -> list[str]:
    reasons = row.state.throttle_reasons if row.state else None
    return [reason for reason in reasons or () if reason not in HARMLESS]


def _lowest_clock(rows: list[LayerMeasurement]) -> str:
    states = [row.state for row in rows if row.state and row.state.clock_hz]
    if not states:
        return ""
    lowest = min(states, key=lambda state: state.clock_hz or 0.0)
    most = f" of {lowest.max_clock_hz / 1e6:.0f}" if lowest.max_clock_hz else ""
    return f", down to {(lowest.clock_hz or 0.0) / 1e6:.0f}{most} MHz"


def _slow_pairs(profile: ClusterProfile) -> Iterator[str]:
    node = _node_of_device(profile)
    kinds: dict[bool, list[PairRate]] = {}
    for pair in profile.pair_rates:
        kinds.setdefault(node[pair.sender] == node[pair.receiver], []).append(pair)
    for is_inside, pairs in kinds.items():
        usual = statistics.median(pair.bytes_per_s for pair in pairs)
        slow = [pair for pair in pairs if usual > SLOW_PAIR_FACTOR * pair.bytes_per_s]
        for pair in sorted(slow, key=lambda pair: pair.bytes_per_s)[:MOST_NAMED]:
            place = "in a node" if is_inside else "between nodes"
            yield (
                f"device {pair.sender} to {pair.receiver} is {usual / pair.bytes_per_s:.1f} times "
                f"slower than other pairs {place} ({pair.bytes_per_s / GB:.3g} of "
                f"{usual / GB:.3g} GB/s)"
            )


def _node_of_device(profile: ClusterProfile) -> list[int]:
    sizes = [group.devices for group in profile.nodes for _ in range(group.count)]
    return [node for node, size in enumerate(sizes) for _ in range(size)]


def _short_links(profile: ClusterProfile) -> Iterator[str]:
    for group in profile.nodes:
        try:
            device = load_device(group.device_type)
        except InputError:
            continue  # nobody says what its links should reach
        for name, usual in ((group.intra_link, device.intra_link), (group.network, device.network)):
            link, library = profile.links[name], load_link(usual)
            if link.provenance != "measured" or link.shared_by_node != library.shared_by_node:
                continue
            if library.bytes_per_s > SHORTFALL_FACTOR * link.bytes_per_s:
                yield (
                    f"link {name} reaches {link.bytes_per_s / GB:.3g} GB/s, "
                    f"{library.bytes_per_s / link.bytes_per_s:.0f} times less than {usual}, which "
                    f"{group.device_type} usually has"
                )


def _narrow_slots(profile: ClusterProfile) -> Iterator[str]:
    for facts in profile.device_facts:
        now, most = facts.pcie_width, facts.max_pcie_width
        if now is not None and most is not None and now < most:
            yield f"device {facts.device} sits in a PCIe slot of {now} lanes and could use {most}"


def _noisy(profile: ClusterProfile) -> Iterator[str]:
    spreads = [(r.spread_fraction or 0.0, r) for r in profile.measurements]
    noisy = [(spread, row) for spread, row in spreads if spread > NOISY_FRACTION]
    if noisy:
        spread, worst = max(noisy, key=lambda pair: pair[0])
        yield (
            f"{len(noisy)} of {len(spreads)} layer times are noisy: half of the repeats differ by "
            f"over {NOISY_FRACTION:.0%}, at worst {spread:.0%} ({worst.shape})"
        )


def _noisy_links(profile: ClusterProfile) -> Iterator[str]:
    noisy = [(m.fit.error_fraction or 0.0, m) for m in profile.link_measurements if m.fit]
    noisy = [(error, m) for error, m in noisy if error > NOISY_FRACTION]
    for error, measured in sorted(noisy, key=lambda pair: -pair[0])[:MOST_NAMED]:
        yield (
            f"{measured.operation} over {len(measured.devices)} devices "
            f"({measured.link or 'no link'}) is noisy: half of its samples lie over {error:.0%} "
            "off the line through them"
        )


def _under_load(profile: ClusterProfile) -> Iterator[str]:
    machine = profile.machine
    if machine is None or machine.cores is None or machine.load_before is None:
        return
    if machine.load_before > LOADED_FRACTION * machine.cores:
        yield (
            f"this profile was made under load: {machine.load_before:.1f} processes were busy on "
            f"{machine.cores} cores before it began"
        )


def _shared_memory(profile: ClusterProfile) -> Iterator[str]:
    shared = [facts for facts in profile.device_facts if facts.shares_host_memory]
    if shared and shared[0].memory_bytes:
        yield (
            f"memory of {len(shared)} of {len(profile.device_facts)} devices is the host's too: "
            f"{shared[0].memory_bytes / GIB:.3g} GiB each, less whatever else the host holds"
        )


def _chosen_adapters(profile: ClusterProfile) -> Iterator[str]:
    chosen = (profile.machine.environment if profile.machine else {}).get("NCCL_IB_HCA")
    if chosen:
        yield f"NCCL_IB_HCA={chosen} names the network adapters in use; others stood idle"
