"""What a partition costs and needs, by hand; what makes no instance."""

from dataclasses import replace

import numpy as np
import pytest

from apss_jax.partitioning.instance import (
    PartitionInstance,
    closed_form_cost_s,
    fits_memory,
    require_costs,
    timing_instance,
)

INSTANCE = PartitionInstance(
    layer_cost_s=np.array([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]]),
    boundary_cost_s=np.array([[0.5], [0.25]]),
    gradient_cost_s=np.array([[3.0, 3.0, 3.0], [5.0, 5.0, 5.0]]),
    memory_bytes=np.array([[100.0, 100.0, 100.0], [60.0, 60.0, 60.0]]),
    capacity_bytes=np.array([200.0, 100.0]),
    num_micro_batches=3,
)


def test_closed_form_cost_by_hand() -> None:
    """Layers 0, 1 on the fast stage, layer 2 on the slow one; both stages reduce gradients."""
    stage_time_s, boundary_s, gradient_s = (1 + 2, 40), 0.25, (3 + 3, 5)
    expected_s = sum(stage_time_s) + 2 * max(stage_time_s) + boundary_s + max(gradient_s)
    assert closed_form_cost_s(INSTANCE, np.array([1])) == expected_s


def test_fits_memory_by_hand() -> None:
    """Two layers fill the first stage; two would need 120 of the second stage's 100 bytes."""
    assert fits_memory(INSTANCE, np.array([1]))
    assert not fits_memory(INSTANCE, np.array([0]))


def test_one_stage() -> None:
    """One stage has no boundary: three micro-batches of everything."""
    instance = timing_instance(np.array([[1.0, 2.0]]), np.zeros((1, 0)), 3)
    assert closed_form_cost_s(instance, np.array([], int)) == 3 * (1 + 2)


@pytest.mark.parametrize("cuts", [[0, 1], [], [2], [-1]])
def test_cuts_that_leave_a_stage_empty(cuts: list[int]) -> None:
    """Cuts that are too many, too few, or at an end make no partition."""
    with pytest.raises(ValueError, match="2 stages of 3 layers need 1 ascending cuts"):
        closed_form_cost_s(INSTANCE, np.array(cuts, int))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_cost_s": np.full((2, 3), np.nan)},
            r"layer_cost_s\[0, 0\] is nan; it must be finite",
        ),
        ({"memory_bytes": np.full((2, 3), -1.0)}, r"memory_bytes\[0, 0\] is -1.0"),
        ({"boundary_cost_s": np.full((2, 1), np.nan)}, r"boundary_cost_s\[0, 0\] is nan"),
        ({"num_micro_batches": 0}, "num_micro_batches is 0"),
    ],
)
def test_wrong_instances_are_refused(changes: dict[str, object], message: str) -> None:
    """The error names the field, the entry, its value and the rule."""
    with pytest.raises(ValueError, match=message):
        replace(INSTANCE, **changes)


def test_more_stages_than_layers_are_refused() -> None:
    """A stage needs a layer."""
    with pytest.raises(ValueError, match="4 stages for 3 layers; each stage needs a layer"):
        timing_instance(np.ones((4, 3)), np.zeros((2, 3)), 2)


def test_wrong_shapes_are_refused() -> None:
    """The error names the array, its shape and the shape it must have."""
    with pytest.raises(ValueError, match=r"memory_bytes has shape \(3,\); it must be \(2,\)"):
        require_costs("memory_bytes", np.ones(3), (2,))
