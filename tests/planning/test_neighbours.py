"""What bounds plans, why the layouts next to them lose, and what the runner-up would need."""

import pytest
from builders import tiny_cluster, tiny_model, tiny_stack

from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.explain import explain_ranked
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.neighbours import neighbour_sentences, neighbours_of
from apss_jax.planning.search import search_plans
from apss_jax.planning.variants import change_words, costed
from apss_jax.schema.detail import Neighbour
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Plan
from apss_jax.units import GIB

SMALL = {"global_batch": 16, "seq_len": 64, "stack": tiny_stack()}


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Returns four tiny layers on four ideal devices."""
    return gather_inputs(tiny_model(), tiny_cluster(), **SMALL)


@pytest.fixture(scope="module")
def plans() -> tuple[Plan, ...]:
    """Returns the plans of that question."""
    return search_plans(tiny_model(), tiny_cluster(), **SMALL).plans


@pytest.fixture(scope="module")
def found(inputs: Inputs, plans: tuple[Plan, ...]) -> tuple[Neighbour, ...]:
    """Returns their neighbours."""
    return neighbours_of(inputs, plans)


def test_every_plan_has_neighbours(found: tuple[Neighbour, ...], plans: tuple[Plan, ...]) -> None:
    """Some are costed, some say why they are not legal; no plan goes without."""
    assert {one.rank for one in found} == {plan.rank for plan in plans}
    assert all(one.reason for one in found if one.verdict == "illegal")
    assert all(one.step_time_s for one in found if one.verdict != "illegal")


def test_none_that_fits_beats_the_first_plan(found: tuple[Neighbour, ...]) -> None:
    """On equal devices the search has seen all of them."""
    own = [one for one in found if one.rank == 1]
    assert [one.change for one in own if one.verdict == "slower"]
    assert [one.change for one in own if one.verdict == "faster"] == []


def test_a_neighbour_costs_what_its_layout_costs(inputs: Inputs) -> None:
    """Twice the micro-batch: the ratio is that of the two step times."""
    layout = Layout(1, 2, 2, micro_batch=2)
    twice = Layout(1, 2, 2, micro_batch=4)
    plan, other = costed(inputs, [layout, twice])
    (one,) = [n for n in neighbours_of(inputs, [plan]) if n.change == change_words(layout, twice)]
    assert plan.cost and other.cost
    assert one.time_ratio == pytest.approx(other.cost.step_time_s / plan.cost.step_time_s)
    assert one.verdict == ("faster" if one.time_ratio < 1 else "slower")


def test_degrees_are_traded(found: tuple[Neighbour, ...], plans: tuple[Plan, ...]) -> None:
    """Each neighbour runs on as many devices as its plan, so a degree never changes alone."""
    assert layout_of(plans[0]).num_devices == 4
    traded = [one.change for one in found if one.change.startswith(("tensor", "pipeline", "data"))]
    assert traded and all("," in change for change in traded)


def test_what_memory_forbids_is_said_first() -> None:
    """A faster neighbour that does not fit is what memory costs; slower ones come after it."""
    full = {"fullest_stage": 0, "memory_bytes": 100 * GIB, "capacity_bytes": 80 * GIB}
    slow = Neighbour(rank=1, change="b", verdict="slower", time_ratio=1.2, step_time_s=1.2,
                     largest_part="compute", largest_change_s=0.2)  # fmt: skip
    fast = Neighbour(rank=1, change="a", verdict="too_big", time_ratio=0.75, **full)
    assert neighbour_sentences([slow, fast], 1) == (
        "memory bounds it: a would take 25.0 % less time, but stage 0 would need 100.0 of 80.0 GiB",
        "b takes 20.0 % longer, mostly compute (+0.2 s)",
    )


def test_a_near_miss_says_how_likely_it_fails() -> None:
    """Where the prediction is below the capacity, the chance is the reason."""
    held = {"fullest_stage": 2, "memory_bytes": 79 * GIB, "capacity_bytes": 80 * GIB}
    risk = {"time_ratio": 1.5, "oom_probability": 0.3}
    near = Neighbour(rank=1, change="a", verdict="too_big", **held, **risk)
    (said,) = neighbour_sentences([near], 1)
    assert said.endswith("stage 2 would need 79.0 of 80.0 GiB and run out with a chance of 30 %")


def test_the_runner_up_says_what_it_lacks(inputs: Inputs, plans: tuple[Plan, ...]) -> None:
    """The gap to the first plan, as seconds and as shares of parts that are at least as long."""
    first, second = plans[:2]
    assert first.cost and second.cost
    cost = second.cost
    slower = second.model_copy(
        update={"cost": cost.model_copy(update={"step_time_s": first.cost.step_time_s + 0.5})}
    )
    (said,) = [s for s in explain_ranked(slower, plans, inputs) if s.startswith("to win")]
    assert "save 0.5 s" in said


def test_explanations_say_what_bounds_and_what_loses(plans: tuple[Plan, ...]) -> None:
    """Every plan names the part that bounds it; the first one, neighbours that lose."""
    for plan in plans:
        assert plan.explanation[0].startswith("bound by ")
    assert any(" longer, mostly " in sentence for sentence in plans[0].explanation)
