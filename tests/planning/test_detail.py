"""What a report draws beside the plans: timeline, sensitivity, neighbours."""

import pytest
from builders import tiny_cluster, tiny_model, tiny_stack

from apss_jax.planning import op_times
from apss_jax.planning.detail import with_detail
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.op_times import timeline_of
from apss_jax.planning.search import search_plans
from apss_jax.planning.sensitivity import sensitivity_of
from apss_jax.planning.variants import costed
from apss_jax.schema.detail import Sensitivity, Timeline
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Plan, SearchResult

STACK = tiny_stack(time_factor=1.25, step_s=1e-4)
SMALL = {"global_batch": 16, "seq_len": 64, "stack": STACK}
CLUSTER = tiny_cluster(2, nodes=2)
PIPELINE = Layout(1, 4, 1)
CHUNKS = Layout(1, 2, 2, virtual_stages=2, schedule="interleaved_1f1b")


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Returns four tiny layers on two nodes of two devices."""
    return gather_inputs(tiny_model(), CLUSTER, **SMALL)


def plan_of(inputs: Inputs, layout: Layout) -> Plan:
    """Returns the costed plan of one layout."""
    return costed(inputs, [layout])[0]


def drawn(inputs: Inputs, layout: Layout) -> Timeline:
    """Returns the timeline of one layout."""
    found = timeline_of(inputs, plan_of(inputs, layout))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "layout", [PIPELINE, CHUNKS, Layout(2, 1, 2), Layout(1, 2, 2, schedule="gpipe")]
)
def test_a_timeline_ends_with_the_step(inputs: Inputs, layout: Layout) -> None:
    """The last update, and the fixed work of a step behind it, end when the step does."""
    cost = plan_of(inputs, layout).cost
    found = drawn(inputs, layout)
    assert cost
    assert found.step_time_s == pytest.approx(cost.step_time_s, rel=1e-5)
    assert max(stage.end_s[-1] for stage in found.stages) < found.step_time_s
    assert found.windows_s == ((0.0, found.step_time_s),)


def test_every_micro_batch_passes_twice(inputs: Inputs) -> None:
    """16 micro-batches: 16 forward and 16 backward passes on each stage, then its update."""
    for stage in drawn(inputs, PIPELINE).stages:
        assert {letter: stage.passes.count(letter) for letter in "FBU"} == {
            "F": 16,
            "B": 16,
            "U": 1,
        }
        assert sorted(stage.micro_batches[:-1]) == sorted([*range(16)] * 2)


def test_the_ops_of_a_stage_do_not_overlap(inputs: Inputs) -> None:
    """One op after the other; a stage waits for the one before it."""
    stages = drawn(inputs, PIPELINE).stages
    for stage in stages:
        pairs = zip(stage.end_s, stage.start_s[1:], strict=False)
        assert all(end <= start + 1e-12 for end, start in pairs)
    assert stages[1].start_s[0] >= stages[0].end_s[0] > 0


def test_a_long_step_lists_its_ends(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 132 ops half of 40 at either end, and the times between which none is left out."""
    whole = drawn(inputs, PIPELINE)
    monkeypatch.setattr(op_times, "MOST_LISTED", 40)
    found = drawn(inputs, PIPELINE)
    (_, until), (since, end) = found.windows_s
    assert 0 < until < since < end == found.step_time_s
    assert 36 <= sum(len(stage.passes) for stage in found.stages) <= 44
    early = [s for stage in whole.stages for s in stage.start_s if s < until]
    assert early == [s for stage in found.stages for s in stage.start_s if s < until]


def test_too_many_ops_have_no_timeline(inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not simulated is unknown, never a shorter step."""
    monkeypatch.setattr(op_times, "MOST_OPS", 100)
    assert timeline_of(inputs, plan_of(inputs, PIPELINE)) is None


def series(inputs: Inputs, layout: Layout) -> dict[str, Sensitivity]:
    """Returns the sensitivity of one layout by name."""
    return {one.name: one for one in sensitivity_of(inputs, [plan_of(inputs, layout)])}


def test_the_present_value_gives_the_plan_itself(inputs: Inputs) -> None:
    """Every series holds the question that was asked, and its step time."""
    cost = plan_of(inputs, PIPELINE).cost
    assert cost
    for one in series(inputs, PIPELINE).values():
        (point,) = [point for point in one.points if point.value == one.present]
        assert point.step_time_s == pytest.approx((cost.step_time_s,))


def test_more_bandwidth_never_costs_more(inputs: Inputs) -> None:
    """A pipeline over two nodes gains by faster networks, and by faster links inside of them."""
    found = series(inputs, PIPELINE)
    for name in ("network_speed", "intra_speed"):
        times = [point.step_time_s[0] or 0.0 for point in found[name].points]
        assert times == sorted(times, reverse=True) and times[0] > times[-1]


def test_a_batch_that_a_plan_cannot_run_is_unknown(inputs: Inputs) -> None:
    """4 replicas of 2 sequences take batches of 8; 4 is none of them."""
    points = series(inputs, Layout(1, 1, 4, micro_batch=2))["global_batch"].points
    known = {point.value: point.step_time_s[0] for point in points}
    assert known[4.0] is None
    assert 0 < (known[8.0] or 0) < (known[16.0] or 0) < (known[32.0] or 0)


def test_one_node_has_no_network() -> None:
    """Nothing is said about links that no plan can use."""
    alone = gather_inputs(tiny_model(), tiny_cluster(4), **SMALL)
    assert set(series(alone, PIPELINE)) == {"global_batch", "intra_speed"}


@pytest.fixture(scope="module")
def detailed() -> SearchResult:
    """Returns a search with all that a report draws."""
    result = search_plans(tiny_model(), CLUSTER, **SMALL)
    return with_detail(tiny_model(), CLUSTER, result, STACK)


def test_a_result_with_detail_is_read_back(detailed: SearchResult) -> None:
    """The document holds every part, and its text gives the same result."""
    assert {"neighbours", "sensitivity", "timeline"} <= set(detailed.to_json())
    assert SearchResult.model_validate_json(detailed.model_dump_json()) == detailed


def test_detail_changes_no_plan(detailed: SearchResult) -> None:
    """Plans are those of the search; a result without plans stays as it is."""
    plain = search_plans(tiny_model(), CLUSTER, **SMALL)
    assert detailed.plans == plain.plans
    nothing = plain.model_copy(update={"plans": ()})
    assert with_detail(tiny_model(), CLUSTER, nothing, STACK) == nothing
