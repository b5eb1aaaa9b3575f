"""Costs of many choices at once."""

from dataclasses import replace

import numpy as np
import pytest

from apss_jax.cost.schedule import build_folded_table, build_table
from apss_jax.planning import costing
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import Costs, ReadyTable, cost_choices, stack_strategies
from apss_jax.planning.cutting import Cutter
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.lineup import Placer
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.layout import Layout

LAYOUTS = tuple(
    Layout(1, stages, 8 // stages, virtual_stages=chunks, schedule=schedule)
    for stages in (2, 4)
    for chunks, schedule in ((1, "1f1b"), (2, "interleaved_1f1b"), (3, "interleaved_1f1b"))
)


def pipelines() -> tuple[CostTables, list[Choice]]:
    """Returns pipelines on a mixed cluster, on each order of devices, with exact cuts."""
    cluster = "1x4xA100-SXM4-80GB+1x4xV100-SXM2-16GB"
    inputs = gather_inputs("gpt2-medium", cluster, global_batch=128, seq_len=1024)
    tables = cost_tables(inputs, [layout.setting for layout in LAYOUTS])
    placer = Placer(inputs)
    placed = [one for layout in LAYOUTS for one in placer.candidates(layout)]
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
    return tables, cutter.choices(placed, tables)


def fully_simulated(
    tables: CostTables, choices: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> Costs:
    """Returns costs for which no rows of a schedule were left out."""
    with monkeypatch.context() as patch:
        patch.setattr(costing, "build_folded_table", build_table)
        return cost_choices(tables.problem, tables.index, choices)


def test_steady_rows_are_left_out_only_where_that_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some pipelines do not settle in time and are simulated again; all agree in the end."""
    tables, choices = pipelines()
    built = []
    monkeypatch.setattr(costing, "build_table", lambda *key: built.append(key) or build_table(*key))
    costs = cost_choices(tables.problem, tables.index, choices)
    assert built
    full = fully_simulated(tables, choices, monkeypatch)
    np.testing.assert_allclose(costs.step_time_s, full.step_time_s, rtol=2e-5)
    scale = full.step_time_s.max()
    np.testing.assert_allclose(costs.breakdown_s, full.breakdown_s, atol=2e-5 * scale)


def test_costs_keep_the_order_of_the_choices() -> None:
    """Groups by schedule are taken apart again: reversed choices have reversed costs."""
    tables, choices = pipelines()
    forwards = cost_choices(tables.problem, tables.index, choices)
    backwards = cost_choices(tables.problem, tables.index, choices[::-1])
    np.testing.assert_array_equal(forwards.step_time_s, backwards.step_time_s[::-1])
    np.testing.assert_array_equal(forwards.memory_bytes, backwards.memory_bytes[::-1])


def test_more_micro_batches_of_one_pipeline_take_longer() -> None:
    """The same cuts with a half, all and twice the micro-batches rank in that order."""
    tables, choices = pipelines()
    counts = [replace(choices[0], num_micro_batches=count) for count in (64, 128, 256)]
    step_time_s = cost_choices(tables.problem, tables.index, counts).step_time_s
    assert np.all(np.diff(step_time_s) > 0)


def test_plans_without_virtual_stages_are_not_padded_in_chunks() -> None:
    """A cost goes over every chunk, padded ones too: one chunk stays one, several share a size."""
    tables, choices = pipelines()
    sizes: dict[int, set[int]] = {}
    for choice in choices:
        table = ReadyTable.of(build_folded_table, choice.table_key)
        strategies = stack_strategies(tables.problem, tables.index, [choice], table)
        sizes.setdefault(choice.layout.virtual_stages, set()).add(strategies.first_unit.shape[1])
    assert sizes[1] == {1}
    assert sizes[2] == sizes[3] and len(sizes[2]) == 1


@pytest.mark.parametrize("stages", [1, 16, 128])
def test_full_tables_of_a_usual_step_share_the_smallest_shape(stages: int) -> None:
    """1,024 micro-batches, start and end of the pipeline included, compile nothing of their own."""
    few, many = (ReadyTable.of(build_table, ("1f1b", stages, n, 1)) for n in (stages, 1024))
    assert few.on_device.kind.shape == many.on_device.kind.shape
