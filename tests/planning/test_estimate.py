"""The cost, memory and legality of one plan."""

import numpy as np
import pytest
from builders import tiny_cluster, tiny_model, tiny_stack

from apss_jax.planning.estimate import estimate_plan, plan_of, stages_of
from apss_jax.planning.search import search_plans
from apss_jax.schema.errors import InputError
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Estimate, Plan

ASKED = {"global_batch": 16, "seq_len": 64, "stack": tiny_stack()}
TWO_STAGES = Layout(1, 2, 2)


def estimate(plan: Plan | Layout = TWO_STAGES, **changes: object) -> Estimate:
    """Returns the estimate of a plan of four tiny layers on four devices."""
    return estimate_plan(tiny_model(), tiny_cluster(), plan, **{**ASKED, **changes})


def rules(found: Estimate) -> set[str]:
    """Returns the names of the rules that a plan breaks."""
    return {violation.rule for violation in found.violations}


def test_a_legal_plan_has_a_cost_and_memory_on_every_stage() -> None:
    """Both stages hold layers, devices, times and memory."""
    found = estimate()
    assert found.legal and found.plan.cost is not None
    assert [stage.devices for stage in found.plan.stages] == [(0, 1), (2, 3)]
    assert all(s.memory_bytes and s.forward_s and s.fits for s in found.plan.stages)


def test_a_searched_plan_is_estimated_as_the_search_did() -> None:
    """Estimating each plan of a search gives its step time and memory again."""
    result = search_plans(tiny_model(), tiny_cluster(), top=8, **ASKED)
    for plan in result.plans:
        again = estimate(plan).plan
        assert again.cost.step_time_s == pytest.approx(plan.cost.step_time_s, rel=1e-6)
        for one, two in zip(again.stages, plan.stages, strict=True):
            assert one.memory_bytes.total == pytest.approx(two.memory_bytes.total, rel=1e-6)
            assert one.chunks == two.chunks


def test_a_split_is_kept_as_given() -> None:
    """Three layers and one: the first stage also has the embedding, the second the head."""
    stages = estimate(split=[3, 1]).plan.stages
    assert [(s.chunks[0].first_layer, s.chunks[0].num_layers) for s in stages] == [(0, 3), (3, 1)]
    assert stages[0].chunks[0].embedding and stages[1].chunks[0].head


def test_without_a_split_the_best_one_is_taken() -> None:
    """No split of four layers into two stages is faster than the exact one."""
    exact_s = estimate().plan.cost.step_time_s
    every_s = [estimate(split=[n, 4 - n]).plan.cost.step_time_s for n in range(5)]
    assert exact_s == pytest.approx(min(every_s), rel=1e-6)
    assert max(every_s) > 1.1 * exact_s


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        (Layout(3, 1, 1), "heads"),
        (Layout(1, 1, 8), "devices"),
        (Layout(1, 1, 3), "batch"),
        (Layout(1, 4, 1, virtual_stages=2, schedule="interleaved_1f1b"), "depth"),
        (Layout(1, 1, 2, expert_parallel=4), "experts"),
    ],
)
def test_an_illegal_plan_is_answered_with_the_rule(layout: Layout, rule: str) -> None:
    """The answer names the rule instead of refusing the question."""
    found = estimate(layout)
    assert not found.legal and rule in rules(found)


def test_a_plan_that_loses_a_layer_has_no_cost() -> None:
    """Figures that the file brought are not shown as ours."""
    plan = search_plans(tiny_model(), tiny_cluster(), **ASKED, pins={"pipeline_parallel": (2,)})
    first = plan.plans[0]
    short = first.stages[0].chunks[0].model_copy(update={"num_layers": 0})
    lost = first.stages[0].model_copy(update={"chunks": (short,)})
    found = estimate(first.model_copy(update={"stages": (lost, *first.stages[1:])}))
    assert "layers" in rules(found)
    assert found.plan.cost is None and found.plan.stages[0].memory_bytes is None


def test_devices_of_a_plan_are_used_as_given() -> None:
    """A stage on the slow node is slower than the same stage on the fast one."""
    plan = plan_of(Layout(1, 2, 4), 16)
    fast_first = [(0, 1, 2, 3), (4, 5, 6, 7)]

    def placed(devices: list[tuple[int, ...]]) -> Plan:
        stages = stages_of(plan, [16, 16])
        given = zip(stages, devices, strict=True)
        return plan.model_copy(
            update={"stages": tuple(s.model_copy(update={"devices": d}) for s, d in given)}
        )

    times = []
    for order in (fast_first, fast_first[::-1]):
        found = estimate_plan(
            "llama-3.1-8b", "1x4xH100+1x4xA100", placed(order), global_batch=16, seq_len=2048
        )
        times.append([stage.forward_s for stage in found.plan.stages])
    assert times[0][0] < times[1][0] and times[0][1] > times[1][1]


def test_the_batch_comes_from_the_plan_or_must_be_given() -> None:
    """Without either, the flag is named."""
    plan = plan_of(TWO_STAGES, 16)
    assert estimate(plan, global_batch=None).legal
    with pytest.raises(InputError, match="--global-batch"):
        estimate(plan.model_copy(update={"global_batch": None}), global_batch=None)


def test_order_of_stages_matters_to_the_schedule_not_to_the_closed_form() -> None:
    """Splits 3,2,2,1 and 1,2,2,3 have equal stage sums, but not equal step times."""
    model, layout = tiny_model(num_layers=8), Layout(1, 4, 1)
    times = []
    for split in ([3, 2, 2, 1], [1, 2, 2, 3]):
        found = estimate_plan(model, tiny_cluster(), layout, split=split, **ASKED)
        times.append(found.plan.cost.step_time_s)
    assert not np.isclose(times[0], times[1], rtol=1e-3)


def test_a_time_factor_scales_every_time_of_a_plan() -> None:
    """Step, parts and stages last twice as long; memory and the shares stay as they are."""
    alone, twice = (estimate(stack=tiny_stack(time_factor=factor)).plan for factor in (1.0, 2.0))
    assert alone.cost is not None and twice.cost is not None
    assert twice.cost.step_time_s == pytest.approx(2.0 * alone.cost.step_time_s)
    assert twice.cost.breakdown_s.compute == pytest.approx(2.0 * alone.cost.breakdown_s.compute)
    assert twice.stages[0].forward_s == pytest.approx(2.0 * alone.stages[0].forward_s)
    assert twice.stages[0].memory_bytes == alone.stages[0].memory_bytes
