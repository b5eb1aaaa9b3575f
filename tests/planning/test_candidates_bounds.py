"""The policy's bounds against the cost model itself."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from apss_jax.datasheet.table import UnitTables
from apss_jax.legality.facts import facts_of
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import cost_choices
from apss_jax.planning.cutting import Cutter
from apss_jax.planning.enumeration import enumerate_layouts
from apss_jax.planning.heuristics import Bounds
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.lineup import Placer
from apss_jax.planning.tables import cost_tables, weight_bytes_of
from apss_jax.schema.layout import Layout, Layouts

ROUNDING = 1e-5  # the cost model computes in float32
PINS = {"pipeline_parallel": (1, 2, 4), "micro_batch": (1, 2), "data_parallel": (1, 2, 4)}


def _in_groups(layout: Layout) -> Layout:
    """Returns a layout that shards over half of its ranks, where they are an even number."""
    even = layout.zero_stage > 0 and layout.shards % 2 == 0
    return (
        replace(layout, zero_shards=layout.shards // 2)
        if even and layout.micro_batch > 1
        else layout
    )


def _tightness(
    choices: Sequence[Choice], lower_s: np.ndarray, step_time_s: np.ndarray
) -> np.ndarray:
    """Returns the bound of each layout over its cost on the best order of devices tried."""
    least_s: dict[Layout, float] = {}
    for choice, cost_s in zip(choices, step_time_s.tolist(), strict=True):
        least_s[choice.layout] = min(cost_s, least_s.get(choice.layout, np.inf))
    bound_s = {choice.layout: bound for choice, bound in zip(choices, lower_s, strict=True)}
    return np.array([bound_s[layout] / least for layout, least in least_s.items()])


@pytest.mark.parametrize("stack", [None, "internevo"])  # the latter has owners of whole tensors
@pytest.mark.parametrize("cluster", ["2x4xT4-16GB", "1x4xV100-SXM2-16GB+1x4xT4-16GB"])
def test_no_cost_is_below_its_bounds(cluster: str, stack: str | None) -> None:
    """Step time and memory of exact partitions of 100 layouts are never below the bounds.

    In the median a bound is most of what its layout takes on the best order of devices.
    """
    inputs = gather_inputs("gpt2", cluster, global_batch=8, seq_len=1024, stack=stack)
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    listed = enumerate_layouts(facts, PINS)
    chosen = np.random.default_rng(0).choice(len(listed), size=100, replace=False)
    layouts = [_in_groups(layout) for layout in listed.take(chosen)]
    tables = cost_tables(inputs, [layout.setting for layout in layouts])
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
    placer = Placer(inputs)
    placed = [candidate for layout in layouts for candidate in placer.candidates(layout)]
    choices = cutter.choices(placed, tables)
    costs = cost_choices(tables.problem, tables.index, choices)
    source = UnitTables(inputs.model, inputs.cluster, inputs.workload, inputs.stack).tables
    bytes_each = weight_bytes_of(inputs.workload)
    bounds = Bounds.of(facts, inputs.cluster, inputs.stack, source, bytes_each)
    view = bounds.look_at(Layouts.of([choice.layout for choice in choices]))
    needed = costs.memory_bytes.sum(axis=-1).max(axis=-1)
    assert np.all(view.step.lower_s <= costs.step_time_s * (1 + ROUNDING))
    assert np.all(view.step.upper_s >= costs.step_time_s * (1 - ROUNDING))
    assert np.all(view.lower_bytes <= needed * (1 + ROUNDING))
    assert np.median(_tightness(choices, view.step.lower_s, costs.step_time_s)) > 0.6
