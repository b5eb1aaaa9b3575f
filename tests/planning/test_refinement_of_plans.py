"""The leading plans get cuts by the schedule and orders of devices of their own."""

from dataclasses import replace

import numpy as np
import pytest

from apss_jax.partitioning.pipeline import fits, simulated_step_s
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import cost_choices
from apss_jax.planning.cutting import Candidate, Cutter
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.lineup import Placer
from apss_jax.planning.pipelines import Blocks, joint_of, pipeline_of
from apss_jax.planning.placement import place
from apss_jax.planning.refinement import Found, refined
from apss_jax.planning.shortfall import excess_bytes
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.layout import Layout

MIXED = "mixed-h100-a100-l40s"
LAYOUT = Layout(tensor_parallel=2, data_parallel=4, pipeline_parallel=5)
INTERLEAVED = replace(LAYOUT, pipeline_parallel=4, virtual_stages=2, schedule="interleaved_1f1b")


def question(layout: Layout) -> tuple[Inputs, CostTables, Cutter, list[Choice]]:
    """Returns a layout of Llama 3.1 8B on every given order of mixed devices, cut exactly."""
    inputs = gather_inputs("llama-3.1-8b", MIXED, global_batch=128)
    tables = cost_tables(inputs, [layout.setting])
    cutter = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact")
    return inputs, tables, cutter, cutter.choices(Placer(inputs).candidates(layout), tables)


def candidate(choice: Choice) -> Candidate:
    """Returns a choice without its cuts."""
    return Candidate(choice.layout, choice.placement, choice.num_micro_batches)


@pytest.mark.parametrize("layout", [LAYOUT, INTERLEAVED])
def test_a_pipeline_takes_what_the_cost_model_says(layout: Layout) -> None:
    """All but what gradients hide behind compute is the same in both; sums of float32 aside."""
    _, tables, cutter, choices = question(layout)
    table = tables.by_setting[layout.setting]
    costs = cost_choices(tables.problem, tables.index, choices)
    for row, choice in enumerate(choices):
        pipeline = pipeline_of(cutter, candidate(choice), table)
        step_s = simulated_step_s(pipeline, choice.offsets[1:-1] - 1) + cutter.stack.step_s
        assert step_s == pytest.approx(costs.step_time_s[row], rel=0.02)


@pytest.mark.parametrize("layout", [LAYOUT, INTERLEAVED])
def test_refined_plans_are_no_slower_and_fit(layout: Layout) -> None:
    """On mixed devices the best plan gains; what is shown fits, best first."""
    inputs, tables, _, choices = question(layout)
    costs = cost_choices(tables.problem, tables.index, choices)
    found = Found(choices, costs, excess_bytes(inputs, choices, costs) < 0, {})
    shown = refined(inputs, tables, found, 2, "exact")
    assert shown.costs.step_time_s[0] < found.best(1).costs.step_time_s[0] * 0.999
    assert np.all(excess_bytes(inputs, shown.choices, shown.costs) < 0)
    assert shown.costs.step_time_s.tolist() == sorted(shown.costs.step_time_s)


@pytest.mark.parametrize("solver", ["uniform", "balanced"])
def test_other_solvers_keep_their_cuts(solver: str) -> None:
    """They are asked for to compare."""
    inputs, tables, _, choices = question(LAYOUT)
    costs = cost_choices(tables.problem, tables.index, choices)
    found = Found(choices, costs, excess_bytes(inputs, choices, costs) < 0, {})
    assert refined(inputs, tables, found, 2, solver).choices == found.best(2).choices


def test_an_order_is_the_pipeline_of_its_devices() -> None:
    """What the open problem says of an order is what its devices, placed, say."""
    inputs, tables, cutter, choices = question(LAYOUT)
    topology, own = inputs.topology, candidate(choices[0])
    table = tables.by_setting[LAYOUT.setting]
    blocks = Blocks.of(topology, LAYOUT)
    assert [len(block) for block in blocks.of_type] == [1, 2, 2]
    joint = joint_of(cutter, topology, own, table, blocks)
    for order in ([0, 1, 1, 2, 2], [2, 1, 0, 1, 2]):
        placement = place(topology, blocks.placed(np.array(order)), LAYOUT.expert_parallel)
        placed = pipeline_of(cutter, replace(own, placement=placement), table)
        opened = joint.ordered(np.array(order))
        cuts = np.array([6, 12, 20, 27])
        assert fits(placed, cuts) == fits(opened, cuts)
        placed_s, opened_s = simulated_step_s(placed, cuts), simulated_step_s(opened, cuts)
        assert opened_s == pytest.approx(placed_s, rel=0.02)
