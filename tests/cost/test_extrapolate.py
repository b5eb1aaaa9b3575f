"""Extrapolation of the steady state equals running every micro-batch, or is not used."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from extrapolated import simulate_extrapolated
from instances import one, random_times

from apss_jax.cost.op_table import ScheduleTable, pad_table
from apss_jax.cost.schedule import build_folded_table, build_table
from apss_jax.cost.simulate import Simulation, StageTimes, round_time, simulate
from apss_jax.cost.slots import State
from apss_jax.cost.timeline import timeline

PLANS, STAGES, CHUNKS = 64, 8, 2
SLOTS = 1024  # more than each full table, so that all share one compiled simulator
SIZES = [
    ("gpipe", 3, 20, 1),
    ("1f1b", 4, 50, 1),
    ("1f1b", 7, 64, 1),
    ("interleaved_1f1b", 4, 48, 2),
]

_simulate_batch = jax.jit(jax.vmap(simulate, in_axes=(None, 0)))


def _run(table: ScheduleTable, times: StageTimes) -> Simulation:
    return jax.tree.map(np.asarray, _simulate_batch(pad_table(table, SLOTS, STAGES), times))


def _varied(seed: int) -> StageTimes:
    return random_times(seed, PLANS, STAGES, CHUNKS)


def _balanced(seed: int) -> StageTimes:
    """Returns plans like those of a search: stages within a fifth, one kind of link."""
    rng = np.random.default_rng(seed)
    forward_s = rng.uniform(1.0, 1.2, (PLANS, CHUNKS, STAGES))
    link_s = np.broadcast_to(rng.uniform(0.0, 0.3, (PLANS, 1, 1)), forward_s.shape)
    tail_s = rng.uniform(0.0, 1.0, (PLANS, STAGES))
    return StageTimes(forward_s, 2 * forward_s, link_s, link_s, tail_s, np.zeros(PLANS))


def _assert_equal(got: Simulation, expected: Simulation, tolerance: float) -> None:
    atol = tolerance * np.max(expected.step_time_s)
    np.testing.assert_allclose(got.step_time_s, expected.step_time_s, rtol=tolerance)
    for name in ("compute_s", "blocked_s", "transfer_wait_s", "bubble_s", "tail_s"):
        pair = getattr(got, name), getattr(expected, name)
        np.testing.assert_allclose(*pair, atol=atol, err_msg=name)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("make_times", [_varied, _balanced])
def test_settled_plans_equal_the_full_simulation(
    sizes: tuple[str, int, int, int], make_times: Callable[[int], StageTimes]
) -> None:
    """Where the simulator says that it is exact, every figure is that of the full table."""
    with jax.enable_x64(True):
        got = _run(build_folded_table(*sizes), make_times(1))
        expected = _run(build_table(*sizes), make_times(1))
    settled = np.flatnonzero(got.is_exact)
    assert settled.size
    _assert_equal(one(got, settled), one(expected, settled), tolerance=1e-11)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("make_times", [_varied, _balanced])
def test_every_plan_equals_the_full_simulation(
    sizes: tuple[str, int, int, int], make_times: Callable[[int], StageTimes]
) -> None:
    """Plans that have not settled are run in full, so that all plans are right, in float32."""
    got = simulate_extrapolated(*sizes, make_times(2))
    assert got.is_exact.all()
    _assert_equal(got, _run(build_table(*sizes), make_times(2)), tolerance=1e-5)


def _round_later(table: ScheduleTable, before: State, round_s: float) -> State:
    period = table.repeat_stop - table.repeat_start
    arrival_s = np.roll(before.arrival_s[:-1], period, axis=0) + round_s
    after = jax.tree.map(lambda values: values + round_s, before)
    return after._replace(arrival_s=np.concatenate([arrival_s, before.arrival_s[-1:]]))


def _is_exact(table: ScheduleTable, before: State, after: State) -> bool:
    states = (jax.tree.map(jnp.asarray, state) for state in (before, after))
    return bool(round_time(table, *states)[1][0])


@pytest.mark.parametrize("field", State._fields)
def test_each_part_of_the_state_must_repeat(field: str) -> None:
    """One stage, link or message that is out of step makes the round unsettled; nothing else does.

    What a stage waited so far, and messages that were read, have no bearing on what follows.
    """
    table = build_folded_table("1f1b", 3, 50)
    values = np.random.default_rng(0).uniform(50.0, 60.0, (table.history_slots + 1, 3, 1))
    before = State(*values[:4], arrival_s=values)
    after = _round_later(table, before, round_s=7.0)
    assert _is_exact(table, before, after)
    for place in np.ndindex(getattr(after, field).shape[:-1]):
        late = getattr(after, field).copy()
        late[place] += 0.01
        matters = field != "transfer_wait_s"
        if field == "arrival_s":
            matters = np.pad(table.is_carried, ((0, 1), (0, 0)))[place]
        assert _is_exact(table, before, after._replace(**{field: late})) == (not matters)


def test_a_queue_that_builds_up_slowly_is_not_extrapolated() -> None:
    """A start-up that still fades in the repeated rows is seen, and the plan is run in full.

    Stage 4 is 1 % slower than stage 0, the next slowest: what stage 0 is ahead wears off over many
    micro-batches, and extrapolating before it has is wrong by 0.4 %.
    """
    sizes, times = ("1f1b", STAGES, 320, 1), one(_balanced(0), slice(1))
    forward_s = np.ones_like(times.forward_s)
    forward_s[..., 0], forward_s[..., 4] = 1.10, 1.11
    link_s = np.full_like(forward_s, 0.2)
    times = StageTimes(forward_s, 2 * forward_s, link_s, link_s, *times[4:])
    folded, full = _run(build_folded_table(*sizes), times), _run(build_table(*sizes), times)
    assert not folded.is_exact[0]
    assert folded.step_time_s[0] < full.step_time_s[0] * (1 - 4e-3)
    got = simulate_extrapolated(*sizes, times)
    np.testing.assert_allclose(got.step_time_s, full.step_time_s, rtol=1e-6)


def test_equal_stages_settle() -> None:
    """The common plan, equal stages and equal links, is never run in full."""
    even = jax.tree.map(lambda values: np.full_like(values, 0.25), _balanced(3))
    for sizes in SIZES:
        assert _run(build_folded_table(*sizes), even).is_exact.all()


def test_times_are_left_alone() -> None:
    """The caller's arrays are read, never written."""
    times = _balanced(5)
    before = [values.copy() for values in times]
    simulate_extrapolated("1f1b", 4, 50, 1, times)
    assert all(np.array_equal(*pair) for pair in zip(before, times, strict=True))


def test_a_folded_table_has_no_timeline() -> None:
    """Ops that are not written out cannot be drawn, so the table is refused."""
    with pytest.raises(ValueError, match="full table"):
        timeline(build_folded_table("1f1b", 4, 50), one(_balanced(5), 0))
