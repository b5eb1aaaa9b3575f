"""The ways in which a time comes out too short, each of which these tests would show."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from builders import tiny_layer

from apss_jax.schema.cluster import LayerShape
from apss_jax.schema.layers import Layer, MoeMlp
from profiler.kernels import Shard
from profiler.layers import Unit, unit_of
from profiler.meter import DeviceMeter, PointFailed, check_rate
from profiler.points import Point, Subject
from profiler.programs import MissingWork, check_work, flops_of, pass_with_residuals, passes_of
from profiler.timing import Stopwatch

LAYER = Subject("tiny", LayerShape(part="layer", hidden_size=8, layer=tiny_layer()), 0)
ONCE = Stopwatch(repeats=1, warm_ups=1, runs_in_order=False)


class Clock:
    """A clock that goes forward when work is done."""

    now_s = 0.0

    def __call__(self) -> float:
        """Returns what time it is."""
        return self.now_s


class Unfinished:
    """A result that is handed out at once and is there only later."""

    def __init__(self, clock: Clock, work_s: float) -> None:
        self.clock, self.work_s = clock, work_s

    def block_until_ready(self) -> None:
        """Does the work."""
        self.clock.now_s += self.work_s


def test_a_time_ends_when_the_result_is_there() -> None:
    """A call that returns at once but works for 2 s takes 2 s."""
    clock = Clock()
    watch = Stopwatch(repeats=4, clock=clock, runs_in_order=False)
    assert watch.time(lambda: Unfinished(clock, 2.0)).times_s == pytest.approx((2.0,) * 4)


def test_every_result_is_waited_for() -> None:
    """Of several results none may still be in the making."""
    clock = Clock()
    watch = Stopwatch(repeats=1, clock=clock, runs_in_order=False)
    results = [Unfinished(clock, 2.0), {"more": Unfinished(clock, 3.0)}]
    assert watch.time(lambda: results).time_s == pytest.approx(5.0)


def test_the_first_call_is_not_counted() -> None:
    """It compiles, loads and allocates."""
    clock, calls_s = Clock(), iter([60.0, 1.0, 1.0, 1.0, 1.0])
    watch = Stopwatch(repeats=3, warm_ups=2, clock=clock)
    assert watch.time(lambda: Unfinished(clock, next(calls_s))).time_s == pytest.approx(1.0)


def test_calls_that_may_overtake_each_other_are_waited_for_one_by_one() -> None:
    """Short calls are gathered into one sample only where the device runs them in order."""
    made = {True: 0, False: 0}
    for in_order in made:
        clock = Clock()
        watch = Stopwatch(repeats=1, warm_ups=1, clock=clock, runs_in_order=in_order)

        def call(key: bool = in_order, now: Clock = clock) -> Unfinished:
            made[key] += 1
            return Unfinished(now, 1e-3)

        watch.time(call)
    assert made == {True: 1 + 5, False: 1 + 1}  # five of 1 ms make a sample of 5 ms


def test_a_least_time_is_the_least_and_a_median_the_middle() -> None:
    """The two statistics, and the spread as quartiles over the median."""
    clock, calls_s = Clock(), iter([9.0, 1.0, 2.0, 3.0, 4.0, 5.0] * 2)
    watch = Stopwatch(repeats=5, warm_ups=1, clock=clock)
    samples = watch.time(lambda: Unfinished(clock, next(calls_s)))
    assert samples.time_s == pytest.approx(3.0)
    assert replace(samples, statistic="least").time_s == pytest.approx(1.0)
    assert samples.spread_fraction == pytest.approx((4.5 - 1.5) / 3.0)


def _counting_unit(ran: list[int]) -> Unit:
    """Returns a unit that notes each run on the device."""

    def apply(weights: Any, x: Any) -> Any:
        jax.debug.callback(lambda: ran.append(1))
        return jnp.tanh(x @ weights["w"])

    return Unit(apply, {"w": (4, 4)}, (2, 3, 4), 0, "float32", chains=True)


def test_each_call_runs_the_work_once() -> None:
    """A loop inside the program, whose body the compiler lifts out, would run it less often."""
    ran: list[int] = []
    passes = passes_of(_counting_unit(ran))
    jax.effects_barrier()
    before = len(ran)
    Stopwatch(repeats=5, warm_ups=2, runs_in_order=False).time(passes.forward)
    jax.effects_barrier()
    assert len(ran) - before == 7


def _lifted(x: Any, weights: Any, times: int) -> Any:
    """Returns what a loop gives whose body does not depend on the round before."""
    zero = jnp.zeros_like(x)
    return jax.lax.fori_loop(0, times, lambda _, total: total + x @ weights, zero)


def test_the_compiler_counts_a_loop_once() -> None:
    """That is why nothing that is timed has one: sixteen rounds look like one."""
    x = jnp.ones((64, 64))
    few, many = (jax.jit(_lifted, static_argnums=2).lower(x, x, n) for n in (1, 16))
    assert flops_of(many) < 2 * flops_of(few)


def _traced(apply: Callable[..., Any]) -> Any:
    unit = Unit(apply, {"w": (4, 4)}, (2, 3, 4), 0, "float32", chains=True)
    return jax.make_jaxpr(pass_with_residuals(unit, "none"))(unit.weights(), unit.input())


def test_weights_are_arguments() -> None:
    """A weight that a function closes over is a constant, which the compiler folds."""
    folded = jnp.ones((4, 4)) * 2
    assert _traced(lambda w, x: x @ w["w"]).consts == []
    assert len(_traced(lambda w, x: x @ folded).consts) == 1


def test_a_layer_has_no_constants() -> None:
    """Every weight of a real layer comes in as an argument."""
    unit = unit_of(LAYER.shape, "fp32", Shard(), 1, 16)
    traced = jax.make_jaxpr(pass_with_residuals(unit, "none"))(unit.weights(), unit.input())
    assert traced.consts == []
    assert len(traced.jaxpr.invars) == len(unit.weight_shapes) + 1


def _meter() -> DeviceMeter:
    return DeviceMeter(jax.local_devices()[0], "CPU", ONCE, {})


def test_dropped_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer whose feed-forward part nobody reads is not timed as a layer."""
    whole = unit_of(LAYER.shape, "fp32", Shard(), 1, 64)
    lazy = replace(whole, apply=lambda weights, x: x * weights["norm"].sum())
    monkeypatch.setattr("profiler.meter.unit_of", lambda *_: lazy)
    with pytest.raises(PointFailed, match="operations where its weights ask for"):
        _meter().measure(Point(LAYER, seq_len=64, precision="fp32"))


def test_a_whole_layer_is_measured() -> None:
    """The same point passes with all its work; both passes and their bytes are there."""
    row = _meter().measure(Point(LAYER, seq_len=64, precision="fp32"))
    assert row.backward_s is not None and row.backward_flops is not None
    assert row.backward_flops > 1.5 * row.forward_flops
    assert row.saved_bytes > 0 and row.workspace_bytes is not None


def test_uncounted_work_is_refused() -> None:
    """A program in which the compiler counts nothing at all did nothing."""
    with pytest.raises(MissingWork):
        check_work("it", None, 100.0)


def test_experts_have_no_count_of_the_compiler() -> None:
    """It counts every expert on every token; a rate from that would be eight times too high."""
    experts = MoeMlp(num_experts=8, experts_per_token=1, expert_intermediate_size=16)
    shape = LayerShape(part="layer", hidden_size=8, layer=Layer(feed_forward=experts, num_norms=1))
    row = _meter().measure(Point(Subject("it", shape, 0), seq_len=16, precision="fp32"))
    assert (row.forward_flops, row.backward_flops) == (None, None)


def test_a_rate_above_the_peak_is_refused() -> None:
    """2e12 operations in 0.034 s on a CPU (jax-ml/jax#4474) are 59 TFLOP/s: nobody waited."""
    row = _meter().measure(Point(LAYER, seq_len=64, precision="fp32"))
    early = row.model_copy(update={"forward_s": 0.034, "backward_s": 1.0})
    with pytest.raises(PointFailed, match=r"58\.8 TFLOP/s on a device of 0\.1"):
        check_rate(early, 2e12, 1e11)
    check_rate(early, 2e12, 1e15)
