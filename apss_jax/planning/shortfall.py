"""What is missing when nothing fits, and the smallest change that would fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from apss_jax.partitioning.balanced import filled_cuts
from apss_jax.planning.candidates import lightest_layouts
from apss_jax.planning.choice import Choice, Offsets
from apss_jax.planning.costing import Costs, cost_choices
from apss_jax.planning.cutting import free_bytes_of, offsets_of, unit_bytes
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.memory_risk import usable_bytes
from apss_jax.planning.placement import (
    DeviceGrid,
    assign_devices,
    capacity_bytes_of,
    device_orders,
    place,
)
from apss_jax.planning.shortlist import bounds_of
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Shortfall

LIGHTEST = 96  # layouts that are looked at on a changed cluster, by their bound on memory
MAX_TIMES = 64  # how many times the cluster is enlarged at most
SHORTEST_TOKENS = 128
Pins = Mapping[str, Sequence[object]]


def find_shortfall(
    inputs: Inputs, pins: Pins, choices: Sequence[Choice], costs: Costs
) -> Shortfall:
    """Returns the bytes missing on the fullest device of the plan that comes closest, and a change.

    More nodes of the last group and shorter sequences are tried; the smallest of each that fits
    is named.
    """
    missing = excess_bytes(inputs, choices, costs)
    nodes = _fewest_nodes(inputs, pins)
    tokens = _longest_sequence(inputs, pins)
    group = inputs.cluster.nodes[-1]
    said = []
    if nodes is not None:
        noun = "node" if nodes == 1 else "nodes"
        said.append(f"{nodes} more {noun} of {group.devices} x {group.device_type}")
    if tokens is not None:
        said.append(f"sequences of {tokens} tokens instead of {inputs.workload.seq_len}")
    if not said:
        said.append(
            f"none found: neither a {MAX_TIMES}-fold cluster nor shorter sequences would fit; "
            "a smaller model or devices with more memory are needed"
        )
    devices = nodes * group.devices if nodes is not None else None
    return Shortfall(
        bytes=float(missing.min(initial=np.inf)), devices=devices, change=", or ".join(said)
    )


def excess_bytes(inputs: Inputs, choices: Sequence[Choice], costs: Costs) -> np.ndarray:
    """Returns for each choice how far its worst stage is above what counts as fitting."""
    total = costs.memory_bytes.sum(axis=-1)
    found = [
        (
            total[i, : c.layout.pipeline_parallel]
            - usable_bytes(c.placement.capacity_bytes, inputs.stack)
        ).max()
        for i, c in enumerate(choices)
    ]
    return np.array(found)


def _fewest_nodes(inputs: Inputs, pins: Pins) -> int | None:
    """Returns how many more nodes of the last group let something fit."""
    most = MAX_TIMES * sum(group.count for group in inputs.cluster.nodes)

    def fits(extra: int) -> bool:
        return lightest_fit(inputs.on(_enlarged(inputs.cluster, extra)), pins) is not None

    def is_confirmed(extra: int) -> bool:
        return _is_confirmed(inputs.on(_enlarged(inputs.cluster, extra)), pins)

    found = _smallest(fits, most)
    while found is not None and not is_confirmed(found):
        found = found + 1 if found < most else None
    return found


def _smallest(fits: Callable[[int], bool], most: int) -> int | None:
    """Returns the smallest number that fits, taking every larger one to fit too."""
    high = 1
    while not fits(high):
        if high >= most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _enlarged(cluster: ClusterProfile, extra: int) -> ClusterProfile:
    last = cluster.nodes[-1]
    larger = last.model_copy(update={"count": last.count + extra})
    # A copy would keep the counts of the smaller cluster.
    kept = {name: getattr(cluster, name) for name in ClusterProfile.model_fields}
    return ClusterProfile(**{**kept, "nodes": (*cluster.nodes[:-1], larger), "hosts": ()})


def _longest_sequence(inputs: Inputs, pins: Pins) -> int | None:
    tokens = inputs.workload.seq_len // 2
    while tokens >= SHORTEST_TOKENS:
        if _is_confirmed(inputs.with_seq_len(tokens), pins):
            return tokens
        tokens //= 2
    return None


def _is_confirmed(inputs: Inputs, pins: Pins) -> bool:
    """Tells whether the cost model agrees that what needs least fits."""
    found = lightest_fit(inputs, pins)
    if found is None:
        return False
    layout, devices, offsets = found
    tables = cost_tables(inputs, [layout.setting])
    placement = place(inputs.topology, devices, layout.expert_parallel, layout.replicas)
    count = layout.num_micro_batches(inputs.workload.global_batch)
    choice = Choice(layout, placement, offsets, count)
    costs = cost_choices(tables.problem, tables.index, [choice])
    return bool(excess_bytes(inputs, [choice], costs)[0] < 0)


def lightest_fit(inputs: Inputs, pins: Pins) -> tuple[Layout, DeviceGrid, Offsets] | None:
    """Returns a layout on devices with cuts that fit the memory, of those that need least.

    Memory asks for no times: stages are filled one after the other.
    """
    layouts = list(lightest_layouts(bounds_of(inputs), pins, LIGHTEST))
    if not layouts:
        return None
    tables = cost_tables(inputs, [layout.setting for layout in layouts])
    order = next(device_orders(inputs.topology))
    for layout in layouts:
        devices = assign_devices(inputs.topology, order, layout)
        if devices is not None:
            capacity = capacity_bytes_of(inputs.topology, devices)
            offsets = _filled(inputs, tables, layout, capacity)
            if offsets is not None:
                return layout, devices, offsets
    return None


def _filled(
    inputs: Inputs,
    tables: CostTables,
    layout: Layout,
    capacity_bytes: Float[np.ndarray, " stages"],
) -> Offsets | None:
    """Returns where the virtual stages of a layout begin and end if each holds what it can."""
    table, chunks = tables.by_setting[layout.setting], layout.virtual_stages
    count = layout.num_micro_batches(inputs.workload.global_batch)
    free_bytes = free_bytes_of(capacity_bytes, table, tables.problem, inputs.stack)
    needed = unit_bytes(layout, count, table, tables.problem)
    cuts = filled_cuts(needed, np.tile(free_bytes, chunks) / chunks)
    return None if cuts is None else offsets_of(cuts, table)
