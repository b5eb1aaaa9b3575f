"""The cost in closed form, and what it shares with the simulated one."""

import jax
import numpy as np
import pytest
from step_problems import problem, schedule, strategy, table

from apss_jax.cost.batched import closed_form_costs, closed_forms_s
from apss_jax.cost.step import StepCost, closed_form_cost, step_cost
from apss_jax.schema.tables import UnitTable

SENT = {
    "transfer_s_per_byte": np.array([[0.5, 0.5]], np.float32),
    "transfer_s_per_call": np.array([[1.0, 1.0]], np.float32),
}
REDUCED = {"gradient_s_per_byte": np.array([[0.1, 0.1], [0.3, 0.3]], np.float32)}


def closed(**changes: object) -> StepCost:
    """Returns the closed form of the hand-worked strategy with some fields changed."""
    return closed_form_cost(problem(step_s=0.25), strategy(**changes))


def long_table(working_bytes: np.ndarray) -> UnitTable:
    """Returns units that differ in what they need for a moment alone."""
    units = len(working_bytes)
    ones = np.ones(units)
    return table(
        compute_s=np.ones((2, 2, units)),
        measured_s=np.zeros((2, units)),
        comm_bytes=np.zeros((2, 3, units)),
        comm_calls=np.zeros((2, 3, units)),
        expert_parameters=np.zeros(units),
        working_bytes=working_bytes,
        **dict.fromkeys(("dense_parameters", "saved_bytes", "boundary_bytes", "model_flops"), ones),
    )


def test_it_is_fill_steady_state_and_tail() -> None:
    """Stages of 9 s: one more round of 9 s, both stages once, and 0.25 s for the step."""
    assert closed().step_time_s == pytest.approx((2 - 1) * 9 + (9 + 9) + 0.25)


def test_only_messages_between_stages_are_sent() -> None:
    """16 bytes at 0.5 s and a call of 1 s, there and back; nothing leaves the last stage."""
    assert closed(**SENT).breakdown.pipeline_comm == pytest.approx(2 * (16 * 0.5 + 1))


@pytest.mark.parametrize("changes", [{}, SENT, REDUCED])
def test_its_breakdown_adds_up(changes: dict[str, np.ndarray]) -> None:
    """The parts sum to the step time."""
    found = closed(**changes)
    assert sum(map(float, found.breakdown)) == pytest.approx(float(found.step_time_s), rel=1e-6)


def test_memory_and_stage_times_are_those_of_the_simulated_cost() -> None:
    """Only the schedule differs."""
    simulated, found = step_cost(problem(), strategy(), schedule()), closed()
    for name in ("memory", "forward_s", "backward_s"):
        jax.tree.map(np.testing.assert_allclose, getattr(found, name), getattr(simulated, name))


def test_a_batch_gives_the_same_times_with_and_without_the_rest() -> None:
    """Both batched forms agree."""
    one = jax.tree.map(lambda leaf: leaf[None], strategy(**SENT))
    alone, full = closed_forms_s(problem(), one), closed_form_costs(problem(), one)
    np.testing.assert_allclose(alone, full.step_time_s)


def test_a_stage_needs_what_its_neediest_unit_needs_for_a_moment() -> None:
    """For every cut of thirteen units, on both stages, the largest of the stage's units."""
    working = np.random.default_rng(0).permutation(13).astype(float)
    units = problem(long_table(working))
    for cut in range(1, 13):
        first, end = np.array([[0, cut]], np.int32), np.array([[cut, 13]], np.int32)
        other = closed_form_cost(units, strategy(first_unit=first, end_unit=end)).memory.other
        np.testing.assert_allclose(other, [working[:cut].max(), working[cut:].max()])
