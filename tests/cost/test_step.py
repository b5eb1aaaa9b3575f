"""One strategy's cost, worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders import tiny_stack
from step_problems import problem, schedule, strategy, table, two_speed_cluster

from apss_jax.cost.batched import closed_forms_s, step_costs
from apss_jax.cost.communication import stage_tail
from apss_jax.cost.compute import chunk_sums
from apss_jax.cost.step import StepCost, closed_form_s, step_cost
from apss_jax.problem import build_problem

FAST = np.array([[True, False], [True, False]])
SLOW_SECOND = np.array([[True, False], [False, True]])
SENT = {"transfer_s_per_byte": np.array([[0.5, 0.5]], np.float32)}
_cost = jax.jit(step_cost)


def cost(**changes: object) -> StepCost:
    """Returns the cost of the hand-worked strategy with some fields changed."""
    return _cost(problem(), strategy(**changes), schedule())


def test_stage_times_are_sums_over_their_layers() -> None:
    """A stage's pass takes what its layers take."""
    found = cost()
    np.testing.assert_allclose(found.forward_s, [1 + 2, 3])
    np.testing.assert_allclose(found.backward_s, [2 * (1 + 2), 2 * 3])


def test_two_micro_batches_on_two_equal_stages() -> None:
    """Two stages of 3 + 6 s: F0 3, F1 on both, B0 there and back: 3 + 3 + 6 + 3 + 6 + 6 = 27 s."""
    assert cost().step_time_s == pytest.approx(27.0)
    assert jax.jit(closed_form_s)(problem(), strategy()) == pytest.approx((2 - 1) * 9 + 9 + 9)


def test_a_slow_device_slows_its_stage_alone() -> None:
    """Only the stage that has the slow type takes twice as long."""
    found = cost(has_type=SLOW_SECOND)
    np.testing.assert_allclose(found.forward_s, [3, 2 * 3])


def test_a_mixed_stage_runs_at_its_slowest_devices_pace() -> None:
    """A stage of both types takes what the slow one takes."""
    mixed = cost(has_type=np.array([[True, True], [True, False]]))
    np.testing.assert_allclose(mixed.forward_s, [2 * 3, 3])


def test_a_transfer_takes_what_leaves_the_last_layer_of_the_stage() -> None:
    """16 bytes leave layer 1 at 0.5 s each: 8 s there, and 8 s back, on the critical path."""
    assert cost(**SENT).step_time_s > cost().step_time_s + 2 * 8 - 1e-3


def test_communication_counts_bytes_calls_and_passes() -> None:
    """Forward 4 bytes x 0.25 s + 1 call x 0.5 s, backward twice that, on layer 0 alone."""
    moved, calls = np.zeros((2, 3, 3)), np.zeros((2, 3, 3))
    moved[:, 0, 0], calls[:, 0, 0] = (4, 8), (1, 2)
    links = np.zeros((2, 3), np.float32)
    links[0, 0] = 0.25
    waits = np.zeros((2, 3), np.float32)
    waits[0, 0] = 0.5
    one = strategy(comm_s_per_byte=links, comm_s_per_call=waits)
    found = _cost(problem(table(comm_bytes=moved, comm_calls=calls)), one, schedule())
    np.testing.assert_allclose(found.forward_s, [3 + 4 * 0.25 + 0.5, 3])
    np.testing.assert_allclose(found.backward_s, [6 + 2 * (4 * 0.25 + 0.5), 6])
    assert found.breakdown.tensor_comm == pytest.approx(2 * 3 * 1.5)


def test_a_stack_adds_to_every_transfer() -> None:
    """2 s more at each of the two messages that the first micro-batch waits for: 27 + 4."""
    slow = problem(transfer_latency_s=2.0)
    assert step_cost(slow, strategy(), schedule()).step_time_s == pytest.approx(27.0 + 2 * 2)


def test_a_stack_adds_to_every_collective() -> None:
    """One call forward and two backward in layer 0, 0.5 s each, where a group has members."""
    calls = np.zeros((2, 3, 3))
    calls[:, 0, 0] = (1, 2)
    slow = problem(table(comm_calls=calls), collective_latency_s=0.5)
    found = step_cost(slow, strategy(comm_s_per_byte=np.ones((2, 3), np.float32)), schedule())
    np.testing.assert_allclose(found.forward_s, [3 + 0.5, 3])
    np.testing.assert_allclose(found.backward_s, [6 + 2 * 0.5, 6])
    alone = step_cost(slow, strategy(), schedule())
    np.testing.assert_allclose(alone.forward_s, [3, 3])


@pytest.mark.parametrize(
    ("ends", "count", "rounds"),
    [
        ([[2, 3]], 8, 1),  # the last micro-batch alone
        ([[1, 2], [2, 3]], 8, 1 + 2 / 2),  # and two of the other chunk, half a stage each
        ([[1, 2], [2, 3]], 1, 1),  # no more than there are
    ],
)
def test_reduction_hides_behind_what_is_left_to_compute(
    ends: list[list[int]], count: int, rounds: float
) -> None:
    """0.8 of 5 s per micro-batch; all the rest of a long reduction shows."""
    end_unit = np.array(ends, np.int32)
    first_unit = np.concatenate([[0], end_unit.ravel()[:-1]]).reshape(end_unit.shape)
    one = strategy(
        count,
        gradient_s_per_byte=np.ones((2, 2), np.float32),
        first_unit=first_unit.astype(np.int32),
        end_unit=end_unit,
    )
    given = problem(), one, chunk_sums(problem(), one)
    whole, left = (stage_tail(*given, jnp.full(2, each)).data_comm_s for each in (0.0, 5.0))
    np.testing.assert_allclose(whole - left, 0.8 * rounds * 5, rtol=1e-5)


def test_gradients_are_sent_once_a_step() -> None:
    """Stage 1 owns 30 parameters: 4 bytes scattered and 2 gathered, at 0.1 s a byte."""
    links = np.full((2, 2), 0.1, np.float32)
    one = strategy(gradient_s_per_byte=links, zero_stage=np.int32(1), shards=np.float32(4))
    exposed = problem(gradient_exposed_fraction=1.0)
    found = _cost(exposed, one, schedule())
    assert found.breakdown.data_comm == pytest.approx(30 * (4 + 2) * 0.1, rel=1e-5)


def test_each_bucket_passes_all_ranks_step_by_step() -> None:
    """Three steps of four ranks, each 0.01 s for every byte of a bucket of 25 MiB."""
    one = strategy(zero_stage=np.int32(1), shards=np.float32(4))
    given = problem(gradient_exposed_fraction=1.0, bucket_step_s=0.01 * 25 * 2**20)
    found = _cost(given, one, schedule())
    assert found.breakdown.data_comm == pytest.approx(30 * (4 + 2) * 3 * 0.01, rel=1e-5)


@pytest.mark.parametrize(("zero_stage", "exposed"), [(0, 0.25), (1, 0.75)])
def test_replicas_may_hide_more_of_their_gradients(zero_stage: int, exposed: float) -> None:
    """4 bytes of 30 parameters scattered and as many gathered, or 2; compute hides the rest."""
    links = np.full((2, 2), 1e-3, np.float32)
    one = strategy(gradient_s_per_byte=links, zero_stage=np.int32(zero_stage))
    given = problem(gradient_exposed_fraction=0.75, replica_exposed_fraction=0.25)
    found = stage_tail(given, one, chunk_sums(given, one), jnp.full(2, 100.0)).data_comm_s
    sent_bytes = 30 * (4 + (2 if zero_stage else 4))
    assert float(found[0]) == pytest.approx(exposed * sent_bytes * 1e-3, rel=1e-5)


@pytest.mark.parametrize(("zero_stage", "added_s"), [(0, 0), (1, 2), (2, 2), (3, 0)])
def test_owners_of_whole_tensors_are_asked_one_by_one(zero_stage: int, added_s: float) -> None:
    """0.25 s for each of two layers and each of four ranks; not where all own a part, or none."""
    one = strategy(zero_stage=np.int32(zero_stage), shards=np.float32(4))
    plain, owned = (
        problem(gradient_exposed_fraction=1.0, owner_step_s=step_s) for step_s in (0.0, 0.25)
    )
    before, after = (
        stage_tail(given, one, chunk_sums(given, one), jnp.zeros(2)).data_comm_s
        for given in (plain, owned)
    )
    assert float(after[0] - before[0]) == pytest.approx(added_s)


def _memory_by_zero_stage(*, pipelined: bool) -> dict[int, list[float]]:
    """Returns the parts of stage 0's memory under every ZeRO stage, states shared by 4 ranks."""
    parts = {}
    for stage in range(4):
        shared = {"zero_stage": np.int32(stage), "shards": np.float32(4)}
        one = strategy(**shared, ends_apart=np.bool_(pipelined))
        memory = _cost(problem(), one, schedule()).memory
        parts[stage] = [float(part[0]) for part in memory]
    return parts


def test_memory_follows_zero_and_the_micro_batches_in_flight() -> None:
    """Stage 0 owns 30 parameters and holds 2 micro-batches of 300 bytes.

    Under ZeRO 3 two units of 15 parameters are gathered.
    """
    parts = _memory_by_zero_stage(pipelined=False)
    held = 2 * (100 + 200)
    assert parts[0] == [30 * 2, 30 * 4, 30 * 12, held, 7]
    assert parts[1] == [30 * 2, 30 * 4, 30 * 12 / 4, held, 7]
    assert parts[2] == [30 * 2, 30 * 4 / 4, 30 * 12 / 4, held, 7]
    gathered = 2 * 15 * 2
    assert parts[3] == [30 * 2 / 4, 30 * 4 / 4, 30 * 12 / 4, held, 7 + gathered]


def test_beside_a_pipeline_the_optimizer_alone_is_sharded() -> None:
    """Gathered weights and gradients stay until the last micro-batch, whatever the ZeRO stage."""
    parts = _memory_by_zero_stage(pipelined=True)
    assert parts[0] == [30 * 2, 30 * 4, 30 * 12, 600, 7]
    assert parts[1] == parts[2] == parts[3] == [30 * 2, 30 * 4, 30 * 12 / 4, 600, 7]


def test_full_precision_has_no_master_copy() -> None:
    """12 + 4 bytes of optimizer are 8 where weights and gradients themselves have 4."""
    tables, cluster = [table()], two_speed_cluster()
    stack = tiny_stack(gradient_bytes=2, gradient_copy_bytes=4)
    half, full = (build_problem(tables, cluster, stack, size) for size in (2.0, 4.0))
    assert (float(half.optimizer_bytes), float(half.gradient_bytes)) == (12 + 4, 2)
    assert (float(full.optimizer_bytes), float(full.gradient_bytes)) == (8, 4)


def test_a_tied_table_is_held_twice_where_the_ends_stand_apart() -> None:
    """The last stage holds 5 parameters more, and only if the embedding is elsewhere."""
    tied = problem(table(tied_parameters=5.0))
    apart = _cost(tied, strategy(), schedule()).memory.weights
    together = _cost(tied, strategy(ends_apart=np.bool_(False)), schedule()).memory.weights
    np.testing.assert_allclose(apart, [2 * 30, 2 * (30 + 5)])
    np.testing.assert_allclose(together, [2 * 30, 2 * 30])


@pytest.mark.parametrize("changes", [{}, SENT, {"has_type": SLOW_SECOND}])
def test_the_breakdown_adds_up(changes: dict[str, np.ndarray]) -> None:
    """The parts sum to the step time."""
    found = _cost(problem(step_s=0.25), strategy(**changes), schedule())
    assert sum(map(float, found.breakdown)) == pytest.approx(float(found.step_time_s), rel=1e-6)


def test_a_batch_is_a_loop_over_its_members() -> None:
    """Costs of three strategies at once equal those of each alone."""
    many = [strategy(), strategy(**SENT), strategy(has_type=SLOW_SECOND)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    batch = step_costs(problem(), stacked, schedule())
    closed = closed_forms_s(problem(), stacked)
    for i, one in enumerate(many):
        alone = _cost(problem(), one, schedule())
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-6), batch, alone)
        assert closed[i] == pytest.approx(float(closed_form_s(problem(), one)))
