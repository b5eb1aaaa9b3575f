"""Layouts beside one that is given: what sets them apart in words, and what each would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from typing import Final

from apss_jax.planning.costing import cost_choices
from apss_jax.planning.cutting import Candidate, Cutter
from apss_jax.planning.documents import PlanWriter
from apss_jax.planning.explain import DEGREES
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.placement import assign_devices, device_orders, place
from apss_jax.planning.tables import cost_tables
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Plan

WORDS: Final = {
    **DEGREES,
    "zero_shards": "ZeRO over ranks",
    "sequence_parallel": "sequence parallel",
    "schedule": "schedule",
}


def mended(layout: Layout) -> Layout:
    """Returns the layout with switches that its degrees leave no sense turned off."""
    chunks = layout.virtual_stages if layout.pipeline_parallel > 1 else 1
    usual = "1f1b" if layout.schedule == "interleaved_1f1b" else layout.schedule
    return replace(
        layout,
        sequence_parallel=layout.sequence_parallel and layout.tensor_parallel > 1,
        virtual_stages=chunks,
        schedule="interleaved_1f1b" if chunks > 1 else usual,
    )


def costed(inputs: Inputs, layouts: Sequence[Layout], *, orders: int = 1) -> list[Plan]:
    """Returns the plans of legal layouts, cut by the exact solver, on some orders of devices.

    Layouts that find no devices in an order are left out of it.
    """
    if not layouts:
        return []
    tables = cost_tables(inputs, [layout.setting for layout in layouts])
    candidates = [one for layout in layouts for one in _candidates(inputs, layout, orders)]
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
    choices = cutter.choices(candidates, tables)
    costs = cost_choices(tables.problem, tables.index, choices)
    writer = PlanWriter(inputs, tables)
    return [writer.plan(choice, costs, row) for row, choice in enumerate(choices)]


def _candidates(inputs: Inputs, layout: Layout, orders: int) -> Iterator[Candidate]:
    count = layout.num_micro_batches(inputs.workload.global_batch)
    for order in islice(device_orders(inputs.topology), orders):
        devices = assign_devices(inputs.topology, order, layout)
        if devices is not None:
            placement = place(inputs.topology, devices, layout.expert_parallel, layout.replicas)
            yield Candidate(layout, placement, count)


def differences(old: Layout, new: Layout) -> list[str]:
    """Returns the names of the fields in which two layouts differ."""
    return [f.name for f in fields(Layout) if getattr(old, f.name) != getattr(new, f.name)]


def change_words(old: Layout, new: Layout) -> str:
    """Returns what is changed in words; schedules follow from virtual stages and go without."""
    names = [name for name in differences(old, new) if name != "schedule"]
    said = [f"{WORDS[n]} {_value(old, n)} -> {_value(new, n)}" for n in names]
    return ", ".join(said) or "the layers of the stages"


def _value(layout: Layout, name: str) -> object:
    value = getattr(layout, name)
    if value is None:
        return "all"  # ranks, over which ZeRO shards
    return ("off", "on")[value] if isinstance(value, bool) else value
