"""What else could be run: the best plan, and the smallest changes that fit."""

from builders import ideal_device, tiny_cluster, tiny_model, tiny_stack

from apss_jax.planning.estimate import estimate_plan
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.what_if import smallest_changes, what_if
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Estimate

START = Layout(2, 1, 4, micro_batch=4, zero_stage=0)


def _inputs(memory_bytes: int = 2**34) -> Inputs:
    """Returns a tiny question on eight devices with so much memory."""
    kind = ideal_device(memory_bytes=memory_bytes)
    small = tiny_cluster(devices=8, device_types={"ideal": kind})
    return gather_inputs(tiny_model(8), small, global_batch=16, seq_len=1024, stack=tiny_stack())


def _estimate(inputs: Inputs, layout: Layout) -> Estimate:
    return estimate_plan(
        inputs.model, inputs.cluster, layout, global_batch=16, seq_len=1024, stack=inputs.stack
    )


def _needed_bytes() -> int:
    (stage,) = _estimate(_inputs(), START).plan.stages
    assert stage.memory_bytes is not None
    return int(stage.memory_bytes.total)


def test_a_plan_that_fits_needs_no_change() -> None:
    """Nothing is said unless the best plan is asked for."""
    inputs = _inputs()
    assert what_if(inputs, _estimate(inputs, START), compare=False) is None


def test_the_best_plan_and_its_gain() -> None:
    """The gain is the plan's step time over the best one's, at least 1 where the plan fits."""
    inputs = _inputs()
    estimate = _estimate(inputs, START)
    found = what_if(inputs, estimate, compare=True)
    assert found is not None and found.best is not None and estimate.plan.cost is not None
    assert found.best.speedup == estimate.plan.cost.step_time_s / found.best.step_time_s
    assert found.best.speedup >= 1
    assert sum(found.best.split) == 8
    assert found.changes == ()


def test_single_changes_come_first() -> None:
    """With three quarters of the memory one change is enough, and each named one fits."""
    inputs = _inputs(_needed_bytes() * 3 // 4)
    changes = smallest_changes(inputs, _estimate(inputs, START).plan)
    assert any(change.change == "micro-batch 4 -> 2" for change in changes)
    times = [change.step_time_s for change in changes]
    assert times == sorted(times)
    assert all(change.oom_probability < 0.1 for change in changes)
    assert all(change.memory_bytes < inputs.cluster.device_types["ideal"].memory_bytes
               for change in changes)  # fmt: skip


def test_two_changes_where_one_is_not_enough() -> None:
    """With a sixth of the memory a pair of changes is named."""
    inputs = _inputs(_needed_bytes() // 6)
    changes = smallest_changes(inputs, _estimate(inputs, START).plan)
    assert changes
    assert all("," in change.change or "data" in change.change for change in changes)


def test_nothing_fits() -> None:
    """On devices that hold nothing there is no change, and no best plan."""
    inputs = _inputs(1000)
    found = what_if(inputs, _estimate(inputs, START), compare=True)
    assert found is not None
    assert (found.best, found.changes) == (None, ())


def test_an_illegal_plan_is_mended() -> None:
    """Four tensor ranks do not divide two heads; two do."""
    inputs = _inputs()
    estimate = _estimate(inputs, Layout(4, 1, 2, micro_batch=4))
    assert not estimate.legal
    found = what_if(inputs, estimate, compare=False)
    assert found is not None
    assert all(change.tensor_parallel <= 2 for change in found.changes)
    assert any(change.change == "tensor 4 -> 2, data 2 -> 4" for change in found.changes)
