"""A profile as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table

from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement
from apss_jax.schema.link_measurements import LinkMeasurement
from apss_jax.units import GB, GIB, KIB, MIB, MS, TFLOP, US
from profiler.findings import warnings_of
from profiler.fit import bus_rates

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN: Final = "-"
MOST_ROWS: Final = 60
HOW_USED: Final = (
    "How a search uses it: under --stack {stack} a measured time is taken as it is; between "
    "measured micro-batches and lengths the ratio to the datasheet is interpolated; beyond them "
    "the nearest ratio holds and the datasheet gives the shape. Layers of other widths take the "
    "ratios of measured ones of their kind. Under another stack only the devices' speed, the links "
    "and the memory carry over. Each plan says what share of it was measured."
)


def show_profile(profile: ClusterProfile, console: Console) -> None:
    """Prints a profile for people: devices, links, layers, warnings, notes."""
    console.print(
        f"{profile.name}: {profile.num_devices} devices, stack {profile.stack or UNKNOWN}"
    )
    _print(console, device_table(profile), link_table(profile))
    _print(console, *(collective_table(m) for m in profile.link_measurements if m.samples))
    for device_type in profile.used_types:
        rows = [row for row in profile.measurements if row.device_type == device_type]
        if rows:
            _print(console, layer_table(f"Layers on {device_type}", rows[:MOST_ROWS]))
        if len(rows) > MOST_ROWS:
            console.print(f"... and {len(rows) - MOST_ROWS} more in the file")
    _list(console, "Warnings", warnings_of(profile) or ["none"])
    _list(console, "Notes", profile.notes)
    if profile.measurements:
        console.print()
        console.print(HOW_USED.format(stack=profile.stack or "the one that ran"))


def device_table(profile: ClusterProfile) -> Table:
    """Returns what is known of each device, or of each type where no device was asked."""
    table = _table("Devices", ("#", "node", "name", "PCIe", "NVLinks", "NUMA"), ("GiB", "clock"))
    for facts in profile.device_facts:
        most = facts.idle_state.max_clock_hz if facts.idle_state else None
        table.add_row(
            str(facts.device),
            str(facts.node),
            facts.name or UNKNOWN,
            _pcie(facts.pcie_generation, facts.pcie_width),
            _text(facts.nvlinks),
            _text(facts.numa_node),
            _scaled(facts.memory_bytes, GIB),
            f"{most / 1e6:.0f} MHz" if most else UNKNOWN,
        )
    if not profile.device_facts:
        for name in profile.used_types:
            memory = _scaled(profile.device_types[name].memory_bytes, GIB)
            table.add_row(UNKNOWN, UNKNOWN, name, UNKNOWN, UNKNOWN, UNKNOWN, memory, UNKNOWN)
    return table


def link_table(profile: ClusterProfile) -> Table:
    """Returns the links, with where their figures come from."""
    table = _table("Links", ("link", "figures"), ("GB/s", "latency", "reached"))
    for name, link in profile.links.items():
        table.add_row(
            name,
            link.provenance,
            _scaled(link.bytes_per_s, GB),
            f"{link.latency_s / US:.3g} us",
            f"{link.reached_fraction:.0%}",
        )
    return table


def collective_table(measured: LinkMeasurement) -> Table:
    """Returns one operation over message sizes; rates as nccl-tests' bus bandwidth."""
    count = len(measured.devices)
    groups = f", {measured.concurrent_groups} groups at once" * (measured.concurrent_groups > 1)
    title = f"{measured.operation} over {count} devices{groups} ({measured.link or 'no link'})"
    table = _table(title, (), ("message", "time", "fastest", "GB/s"))
    rates = bus_rates(measured.operation, count, measured.samples)
    for sample in measured.samples:
        table.add_row(
            _size(sample.message_bytes),
            _time(sample.median_s),
            _time(sample.fastest_s),
            _scaled(rates[sample.message_bytes], GB),
        )
    return table


def layer_table(title: str, rows: Sequence[LayerMeasurement]) -> Table:
    """Returns times, rates and bytes of measured points."""
    table = _table(
        title,
        ("shape", "", "recompute"),
        ("b", "s", "t", "forward", "backward", "TFLOP/s", "spread", "kept", "work"),
    )
    for row in sorted(rows, key=lambda r: (r.shape, r.precision, r.seq_len, r.micro_batch)):
        rate = row.forward_flops / row.forward_s if row.forward_flops else None
        table.add_row(
            row.shape,
            row.precision,
            row.recompute,
            str(row.micro_batch),
            str(row.seq_len),
            str(row.tensor_parallel),
            _time(row.forward_s),
            UNKNOWN if row.backward_s is None else _time(row.backward_s),
            _scaled(rate, TFLOP),
            UNKNOWN if row.spread_fraction is None else f"{row.spread_fraction:.0%}",
            _size(row.saved_bytes),
            _size(row.workspace_bytes),
        )
    return table


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print(console: Console, *tables: Table) -> None:
    for table in tables:
        console.print()
        console.print(table)


def _list(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print()
        console.print(title)
    for line in lines:
        console.print(f"- {line}")


def _text(value: object | None) -> str:
    return UNKNOWN if value is None else str(value)


def _scaled(value: float | None, unit: float) -> str:
    return UNKNOWN if value is None else f"{value / unit:.3g}"


def _pcie(generation: int | None, width: int | None) -> str:
    if generation is None and width is None:
        return UNKNOWN
    return f"{_text(generation)} x{_text(width)}"


def _time(time_s: float) -> str:
    if time_s >= 1.0:
        return f"{time_s:.3g} s"
    return f"{time_s / MS:.3g} ms" if time_s >= MS else f"{time_s / US:.3g} us"


def _size(size: float | None) -> str:
    if size is None:
        return UNKNOWN
    if size >= GIB:
        return f"{size / GIB:.3g} GiB"
    return f"{size / MIB:.3g} MiB" if size >= MIB else f"{size / KIB:.3g} KiB"
