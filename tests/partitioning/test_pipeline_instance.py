"""Pipelines as problems: what they hold, their closed form, and which orders of devices exist."""

from dataclasses import replace

import numpy as np
import pytest
from pipeline_instances import random_joint, random_pipeline

from apss_jax.partitioning.instance import closed_form_cost_s
from apss_jax.partitioning.pipeline import PipelineInstance, fits, stage_bytes


def small() -> PipelineInstance:
    """Returns four layers on two stages with figures that can be added up by hand."""
    return PipelineInstance(
        forward_s=np.array([[1.0, 2, 3, 4], [2.0, 4, 6, 8]]),
        backward_s=np.array([[2.0, 4, 6, 8], [4.0, 8, 12, 16]]),
        transfer_s=np.array([[0.5], [0.25], [0.125]]),
        gradient_s=np.array([[0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2]]),
        state_bytes=np.array([10.0, 20, 30, 40]),
        saved_bytes=np.array([1.0, 2, 3, 4]),
        in_flight=np.array([2, 1]),
        capacity_bytes=np.array([36.0, 77.0]),
        num_micro_batches=5,
    )


def test_closed_form_counts_both_messages() -> None:
    """The boundary costs an activation and a gradient; times are of both passes."""
    cost_s = closed_form_cost_s(small().closed_form(), np.array([1]))
    assert cost_s == pytest.approx((9 + 42) + 4 * 42 + 2 * 0.25 + 0.4)


def test_stage_bytes_add_states_and_what_is_in_flight() -> None:
    """The first stage keeps two micro-batches, the last one."""
    assert stage_bytes(small(), np.array([1])) == pytest.approx([30 + 2 * 3, 70 + 7])


def test_fits_is_by_stage() -> None:
    """Full stages fit; a byte less of room does not."""
    assert fits(small(), np.array([1]))
    assert not fits(replace(small(), capacity_bytes=np.array([35.0, 77.0])), np.array([1]))


def test_chunks_share_the_memory_of_their_stage() -> None:
    """Two chunks of unequal size fit together where neither half of the memory holds the larger."""
    two = random_pipeline(np.random.default_rng(0), 8, 2, 4, virtual_stages=2)
    bytes_ = stage_bytes(two, np.array([0, 3, 4]))
    held = two.held_bytes
    assert bytes_[0] == pytest.approx(held[0, :1].sum() + held[2, 4:5].sum())
    assert bytes_[1] == pytest.approx(held[1, 1:4].sum() + held[3, 5:].sum())


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"forward_s": -np.ones((2, 4))}, "forward_s"),
        ({"transfer_s": np.ones((2, 1))}, "transfer_s"),
        ({"num_micro_batches": 0}, "must be positive"),
        ({"virtual_stages": 3}, "each piece needs a layer"),
    ],
)
def test_what_is_no_problem_is_refused(change: dict[str, object], rule: str) -> None:
    """The message names the field or the rule."""
    with pytest.raises(ValueError, match=rule):
        replace(small(), **change)


def test_interleaved_micro_batches_come_in_rounds() -> None:
    """Interleaving takes a multiple of the stages."""
    two = random_pipeline(np.random.default_rng(0), 8, 2, 4, virtual_stages=2)
    with pytest.raises(ValueError, match="cannot be interleaved"):
        replace(two, num_micro_batches=3)


def test_ordered_takes_each_stage_from_its_type() -> None:
    """Times and memory of a stage are those of its type."""
    joint = random_joint(np.random.default_rng(1), 6, (2, 1), tight=True)
    pipeline = joint.ordered(np.array([1, 0, 0]))
    assert np.array_equal(pipeline.forward_s, joint.type_forward_s[[1, 0, 0]])
    assert np.array_equal(pipeline.capacity_bytes, joint.capacity_bytes[[1, 0, 0]])
    assert pipeline.in_flight.tolist() == [min(3, joint.num_micro_batches), 2, 1]


def test_neighbours_of_a_node_use_its_link() -> None:
    """Stages fill nodes in the order of the pipeline; only neighbours of one node are near."""
    joint = random_joint(np.random.default_rng(2), 8, (4, 2), node_stages=2)
    order = np.array([0, 0, 0, 1, 0, 1])
    sent_s = joint.ordered(order).transfer_s[0]
    near = joint.boundary_bytes[0] * joint.node_s_per_byte[0] + joint.node_s_per_call[0]
    far = joint.boundary_bytes[0] * joint.link_s_per_byte + joint.link_s_per_call
    assert sent_s == pytest.approx([near, far[0, 0], far[0, 1], far[1, 0], far[0, 1]])


@pytest.mark.parametrize("order", [[0, 0, 0], [1, 1, 0], [0, 2, 0], [0, 1]])
def test_orders_keep_to_what_there_is(order: list[int]) -> None:
    """Too many of a type, a type that does not exist, a stage without one: all refused."""
    joint = random_joint(np.random.default_rng(1), 6, (2, 1))
    with pytest.raises(ValueError, match="order"):
        joint.ordered(np.array(order))
