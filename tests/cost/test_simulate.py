"""The simulator against an independent event queue, hand-worked steps, and what always holds."""

import chex
import jax
import numpy as np
import pytest
from event_queue import Pipeline
from instances import (
    CHUNKS,
    STAGES,
    equal_times,
    event_pipeline,
    one,
    padded_table,
    random_sizes,
    random_times,
)

from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.schedule import SCHEDULES, build_table
from apss_jax.cost.simulate import Simulation, StageTimes, simulate
from apss_jax.cost.timeline import timeline

TABLES, PLANS = 20, 50  # a thousand plans of each schedule
CASES = {name: random_sizes(name, TABLES) for name in SCHEDULES}

Events = tuple[str, list[list[Pipeline]]]

simulate_one = jax.jit(simulate)
simulate_batch = jax.jit(jax.vmap(simulate, in_axes=(None, 0)))


def _times(seed: int, batch: int = PLANS) -> StageTimes:
    return random_times(seed, batch, STAGES, CHUNKS)


@pytest.fixture(scope="module", params=SCHEDULES)
def events(request: pytest.FixtureRequest) -> Events:
    """A schedule's name, and for each of its tables the plans as the event queue runs them."""
    runs = [
        [event_pipeline(request.param, sizes, one(_times(seed), i)) for i in range(PLANS)]
        for seed, sizes in enumerate(CASES[request.param])
    ]
    return request.param, runs


def _expected(runs: list[Pipeline], times: StageTimes, stages: int) -> dict[str, np.ndarray]:
    finish_s = np.array([[run.free_since[s] for s in range(stages)] for run in runs])
    wait_s = np.array([[run.transfer_wait[s] for s in range(stages)] for run in runs])
    return {
        "step_time_s": (finish_s + times.tail_s[:, :stages]).max(axis=1),
        "transfer_wait_s": wait_s,
    }


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_equals_the_event_queue(events: Events, dtype: type[np.floating], tolerance: float) -> None:
    """A thousand plans of each schedule take the time that the event queue finds."""
    name, runs = events
    for seed, sizes in enumerate(CASES[name]):
        times = jax.tree.map(lambda values: values.astype(dtype), _times(seed))
        with jax.enable_x64(dtype == np.float64):
            got = jax.tree.map(np.asarray, simulate_batch(padded_table(name, sizes), times))
        expected = _expected(runs[seed], _times(seed), sizes[0])
        assert got.step_time_s.dtype == dtype
        np.testing.assert_allclose(got.step_time_s, expected["step_time_s"], rtol=tolerance)
        np.testing.assert_allclose(
            got.transfer_wait_s[:, : sizes[0]],
            expected["transfer_wait_s"],
            atol=tolerance * expected["step_time_s"].max(),
        )


def test_timeline_equals_the_event_queue(events: Events) -> None:
    """Each op starts and ends when it does in the event queue."""
    name, runs = events
    for seed, sizes in list(enumerate(CASES[name]))[:5]:
        table = padded_table(name, sizes)
        with jax.enable_x64(True):
            drawn = timeline(table, one(_times(seed), 0))
        for slot, stage in zip(*np.nonzero(table.kind), strict=True):
            cell = (slot, stage)
            op = ("-FB"[table.kind[cell]], int(table.micro_batch[cell]), int(table.chunk[cell]))
            assert drawn.start_s[cell] == pytest.approx(runs[seed][0].started[stage, op], rel=1e-9)
            assert drawn.end_s[cell] == pytest.approx(runs[seed][0].ended[stage, op], rel=1e-9)


def test_two_stages_by_hand() -> None:
    """GPipe, 2 stages, 2 micro-batches: forward 2, backward 3, 5 s of transfer, one link each way.

    Forward passes end at 2 and 4; their messages arrive at 7 and, in turn, 12. The second stage
    forwards until 14, then backwards until 17 and 20; those messages arrive at 22 and 27.
    """
    each, link = np.ones((1, 2)), np.full((1, 2), 5.0)
    times = StageTimes(2 * each, 3 * each, link, link, np.array([0.5, 0.0]), np.asarray(0.0))
    got = simulate_one(build_table("gpipe", 2, 2), times)
    assert float(got.step_time_s) == 27 + 3 + 0.5
    assert int(got.critical_stage) == 0
    # Stage 0 waits from 4 to 22, for a transfer of 5, and from 25 to 27; stage 1 for 5, and 9-12.
    assert got.transfer_wait_s.tolist() == [5 + 2, 5 + 3]
    assert got.bubble_s.tolist() == [(22 - 4) - 5, 2 + (30.5 - 20)]


def test_a_blocking_sender_by_hand() -> None:
    """Half of each 4 s transfer holds the sender: 1F1B on 2 stages, 1 micro-batch.

    Forward until 1, message at 5, forward until 6, backward until 8, message at 12, until 14.
    """
    each, link = np.ones((1, 2)), np.full((1, 2), 4.0)
    times = StageTimes(each, 2 * each, link, link, np.zeros(2), np.asarray(0.5))
    got = simulate_one(build_table("1f1b", 2, 1), times)
    assert float(got.step_time_s) == 14
    assert got.blocked_s.tolist() == [0.5 * 4, 0.5 * 4]
    assert got.transfer_wait_s.tolist() == [4, 4]
    assert got.bubble_s.tolist() == [14 - 3 - 2 - 4, 14 - 3 - 2 - 4]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 32)])
def test_bubble_of_equal_stages(name: str, stages: int, micro_batches: int) -> None:
    """The bubble is (stages - 1) / (chunks x micro-batches) of the ideal step.

    Narayanan et al. 2021 (arXiv:2104.04473), sections 2.2.1 and 2.2.2.
    """
    chunks = 2 if name == "interleaved_1f1b" else 1
    times = equal_times(stages, chunks, forward_s=1.0, backward_s=2.0)
    got = simulate_one(build_table(name, stages, micro_batches, chunks), times)
    ideal_s = micro_batches * chunks * 3.0
    bubble_fraction = (stages - 1) / (chunks * micro_batches)
    assert float(got.step_time_s) == pytest.approx(ideal_s * (1 + bubble_fraction), rel=1e-6)
    np.testing.assert_allclose(got.bubble_s, ideal_s * bubble_fraction, rtol=1e-5)


def _ordered(stage_s: list[float], transfer_s: float) -> StageTimes:
    forward_s = np.array([stage_s]) / 3
    link_s = np.full((1, 4), transfer_s)
    return StageTimes(forward_s, 2 * forward_s, link_s, link_s, np.zeros(4), np.asarray(0.0))


def test_the_order_of_stages_counts() -> None:
    """Stages of 3, 2, 2, 1 and of 1, 2, 2, 3 differ; (m - 1) max + sum + transfers does not."""
    orders, transfer_s, micro_batches = ([3.0, 2.0, 2.0, 1.0], [1.0, 2.0, 2.0, 3.0]), 0.2, 16
    table = build_table("1f1b", 4, micro_batches)
    steps = [float(simulate_one(table, _ordered(s, transfer_s)).step_time_s) for s in orders]
    closed = [(micro_batches - 1) * max(s) + sum(s) + 6 * transfer_s for s in orders]
    assert closed[0] == closed[1]
    assert abs(steps[0] - steps[1]) > 0.02 * steps[0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_parts_add_up_to_the_step(name: str) -> None:
    """On every stage the five parts, none of them negative, are the step."""
    for seed, sizes in enumerate(CASES[name][:5]):
        got = simulate_batch(padded_table(name, sizes), _times(seed))
        parts = np.stack(got[2:7])[:, :, : sizes[0]]
        assert (parts >= 0).all()
        np.testing.assert_allclose(parts.sum(axis=0), got.step_time_s[:, None] + 0 * parts[0], 1e-5)


@pytest.mark.parametrize("field", StageTimes._fields)
def test_no_time_that_shrinks_costs_more(field: str) -> None:
    """A quicker stage, link or tail, or a sender that is held less, never lengthens the step."""
    for name, all_sizes in CASES.items():
        times = _times(seed=3)
        less = np.random.default_rng(5).uniform(0.0, 1.0, getattr(times, field).shape)
        quicker = times._replace(**{field: getattr(times, field) * less})
        for sizes in all_sizes[:5]:
            table = padded_table(name, sizes)
            before = simulate_batch(table, times).step_time_s
            assert (simulate_batch(table, quicker).step_time_s <= before * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_padding_changes_nothing(name: str) -> None:
    """Idle slots and stages, and unused chunks full of NaN, leave every figure as it was."""
    sizes = CASES[name][0]
    stages, chunks = sizes[0], sizes[2]
    bare = random_times(1, 4, stages, chunks)
    padded = jax.tree.map(lambda values: np.full_like(values, np.nan), _times(1, 4))
    for wide, narrow in zip(padded, bare, strict=True):
        wide[tuple(slice(size) for size in narrow.shape)] = narrow
    got = simulate_batch(padded_table(name, sizes), padded)
    expected = simulate_batch(build_table(name, *sizes), bare)
    for wide, narrow in zip(got, expected, strict=True):
        same = wide[:, :stages] if wide.ndim == 2 else wide
        np.testing.assert_allclose(same, narrow, rtol=1e-6, atol=1e-6)


def _stack(results: list[Simulation]) -> Simulation:
    return jax.tree.map(lambda *values: np.stack(values), *results)


def _assert_same(got: Simulation, expected: Simulation) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 1e-6), got, expected)


@pytest.mark.parametrize("batch", [3, 1024])
def test_batched_is_a_loop_of_single(batch: int) -> None:
    """A batch, also one that is run in parts, gives what its plans give one by one."""
    table, times = padded_table("1f1b", (5, 9, 1)), _times(2, batch)
    some = range(0, batch, max(1, batch // 8))
    got = jax.tree.map(lambda values: values[np.array(some)], simulate_batch(table, times))
    _assert_same(got, _stack([simulate_one(table, one(times, i)) for i in some]))


def test_batches_nest() -> None:
    """A batch of batches gives what the flat batch gives."""
    table, times = padded_table("1f1b", (5, 9, 1)), _times(2, 12)
    nested = jax.tree.map(lambda values: values.reshape(3, 4, *values.shape[1:]), times)
    got = jax.vmap(simulate_batch, in_axes=(None, 0))(table, nested)
    flat = jax.tree.map(lambda values: values.reshape(12, *values.shape[2:]), got)
    _assert_same(flat, simulate_batch(table, times))


def test_each_plan_may_have_its_own_table() -> None:
    """A batch over tables as well as times gives what each pair gives alone."""
    names = list(SCHEDULES)
    tables = [padded_table(name, CASES[name][1]) for name in names]
    stacked: ScheduleTable = jax.tree.map(lambda *values: np.stack(values), *tables)
    times = _times(4, len(names))
    got = jax.jit(jax.vmap(simulate))(stacked, times)
    alone = [simulate_one(table, one(times, i)) for i, table in enumerate(tables)]
    _assert_same(got, _stack(alone))


def test_one_padded_shape_is_compiled_once() -> None:
    """Other sizes, schedules and times of one padded shape run the same compiled simulator."""
    run = jax.jit(jax.vmap(chex.assert_max_traces(simulate, n=1), in_axes=(None, 0)))
    for name in SCHEDULES:
        for seed, sizes in enumerate(CASES[name][:4]):
            run(padded_table(name, sizes), _times(seed, 2))
    assert run._cache_size() == 1
