"""What is missing when nothing fits, and the smallest change that would fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import Costs, cost_choices
from apss_jax.planning.cutting import Candidate, Cutter, in_flight, state_bytes
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.lineup import line_up
from apss_jax.planning.memory_risk import usable_bytes
from apss_jax.planning.shortlist import shortlist
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.plan import Shortfall

LIGHTEST = 96  # candidates that are looked at on a changed cluster, by their average memory
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
        return fits_somewhere(inputs.on(_enlarged(inputs.cluster, extra)), pins)

    return _smallest(fits, most)


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
    return cluster.model_copy(update={"nodes": (*cluster.nodes[:-1], larger)})


def _longest_sequence(inputs: Inputs, pins: Pins) -> int | None:
    tokens = inputs.workload.seq_len // 2
    while tokens >= SHORTEST_TOKENS:
        if fits_somewhere(inputs.with_seq_len(tokens), pins):
            return tokens
        tokens //= 2
    return None


def fits_somewhere(inputs: Inputs, pins: Pins) -> bool:
    """Tells whether any of the lightest candidates fits."""
    kept = list(shortlist(inputs, pins, use_policy=True).layouts)
    if not kept:
        return False
    tables = cost_tables(inputs, [layout.setting for layout in kept])
    candidates = line_up(inputs, kept, tables).candidates
    weight = [average_bytes(candidate, tables) for candidate in candidates]
    lightest = [candidates[i] for i in np.argsort(weight, kind="stable")[:LIGHTEST]]
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
    choices = cutter.choices(lightest, tables)
    costs = cost_choices(tables.problem, tables.index, choices)
    return bool((excess_bytes(inputs, choices, costs) < 0).any())


def average_bytes(candidate: Candidate, tables: CostTables) -> float:
    """Returns the memory of the average stage: states and activations in flight."""
    layout = candidate.layout
    table = tables.by_setting[layout.setting]
    stages = layout.pipeline_parallel
    held = in_flight(layout.schedule, stages, candidate.num_micro_batches, layout.virtual_stages)
    activations = table.saved_bytes.sum() * held.mean() / stages
    states = state_bytes(layout, table, tables.problem, tied=stages > 1)
    return float(states.sum() / stages + activations)
