"""Plan documents as choices again, to cost them as they are."""

from __future__ import annotations

import numpy as np

from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.choice import Choice
from apss_jax.planning.cutting import Candidate, Cutter
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.placement import (
    DeviceGrid,
    Placement,
    assign_devices,
    device_orders,
    place,
)
from apss_jax.planning.tables import CostTables
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Plan


def choice_of(inputs: Inputs, plan: Plan, tables: CostTables) -> Choice:
    """Returns a legal plan's choice; what it leaves open is placed as usual and cut exactly."""
    layout = layout_of(plan)
    placement = _placement(inputs, plan, layout)
    if not plan.stages:
        candidate = Candidate(layout, placement, plan.num_micro_batches)
        cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
        return cutter.choices([candidate], tables)[0]
    chunks = [s.chunks[c] for c in range(plan.virtual_stages) for s in plan.stages]
    ends = int(tables.by_setting[layout.setting].has_ends)
    sizes = [chunk.num_layers + ends * (chunk.embedding + chunk.head) for chunk in chunks]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return Choice(layout, placement, offsets, plan.num_micro_batches)


def _placement(inputs: Inputs, plan: Plan, layout: Layout) -> Placement:
    devices = _given_devices(plan, layout)
    if devices is None:
        order = next(device_orders(inputs.topology))
        devices = assign_devices(inputs.topology, order, layout)
    assert devices is not None  # the rule "placement" holds
    return place(inputs.topology, devices, layout.expert_parallel, layout.replicas)


def _given_devices(plan: Plan, layout: Layout) -> DeviceGrid | None:
    if not plan.stages or not all(stage.devices for stage in plan.stages):
        return None
    flat = np.array([stage.devices for stage in plan.stages])
    ranks = (layout.data_parallel, layout.context_parallel, layout.tensor_parallel)
    return flat.reshape(layout.pipeline_parallel, *ranks)
