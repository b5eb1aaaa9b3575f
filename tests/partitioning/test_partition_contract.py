"""`partition`: arrays in, cuts out, and errors that name what is wrong."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import apss_jax

LAYERS = np.array([[1.0, 1, 1, 1, 1, 1], [5.0, 1, 1, 1, 1, 1]])
BOUNDARIES = np.zeros((2, 5, 1))


@pytest.mark.parametrize(
    ("solver", "cuts"),
    [("exact", [[2], [0]]), ("balanced", [[2], [0]]), ("uniform", [[2], [2]])],
)
def test_cuts_by_hand(solver: str, cuts: list[list[int]]) -> None:
    """Equal layers are halved; a first layer of five stands alone unless layers are counted."""
    found = apss_jax.partition(LAYERS, BOUNDARIES, num_stages=2, solver=solver)
    assert found.tolist() == cuts
    assert found.dtype.kind == "i"


def test_boundary_costs_and_micro_batches_decide() -> None:
    """Moving the cut saves 3 of boundary and adds 1 to the slowest stage of each further round."""
    boundaries = np.array([[[0.0], [0], [3], [0], [0]]])
    few = apss_jax.partition(LAYERS[:1], boundaries, num_stages=2, solver="exact")
    many = apss_jax.partition(
        LAYERS[:1], boundaries, num_stages=2, num_micro_batches=5, solver="exact"
    )
    assert few.item() in (1, 3)
    assert many.item() == 2


def test_called_twice_after_importing_the_submodules() -> None:
    """The function is not replaced by a module of its name, and answers the same again."""
    import apss_jax.partitioning.exact
    import apss_jax.partitioning.solve

    first, second = (apss_jax.partition(LAYERS, BOUNDARIES, num_stages=2) for _ in range(2))
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(("batch", "stages"), [(0, 2), (3, 1), (3, 5), (400, 3)])
def test_shapes(batch: int, stages: int) -> None:
    """Empty and large batches, one stage, and a stage for each layer have shapes as promised."""
    rng = np.random.default_rng(0)
    layers, boundaries = rng.random((batch, 5)), rng.random((batch, 4, stages - 1))
    for solver in ("exact", "balanced", "uniform"):
        cuts = apss_jax.partition(layers, boundaries, num_stages=stages, solver=solver)
        assert cuts.shape == (batch, stages - 1)
        assert (np.diff(cuts, axis=1) > 0).all()


def test_lists_of_whole_numbers() -> None:
    """Nested lists are arrays too."""
    assert apss_jax.partition([[1, 1]], [[[0]]], num_stages=2).tolist() == [[0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"solver": "best"}, "solver is 'best'; it must be one of dpsn, exact, balanced"),
        ({"num_stages": 0}, "num_stages is 0; it must be a whole number from 1"),
        ({"num_stages": 7}, "num_stages is 7; 6 layers make at most 6 stages"),
        ({"num_micro_batches": 0}, "num_micro_batches is 0"),
        ({"samples": 0}, "samples is 0"),
        ({"layer_costs": LAYERS[0]}, r"layer_costs has shape \(6,\); it must have 2 axes"),
        ({"layer_costs": [["a"]]}, "layer_costs holds"),
        ({"layer_costs": -LAYERS}, r"layer_costs\[0, 0\] is -1.0; it must be finite, and zero or"),
        ({"layer_costs": LAYERS * np.nan}, r"layer_costs\[0, 0\] is nan"),
        ({"boundary_costs": BOUNDARIES + np.inf}, r"boundary_costs\[0, 0, 0\] is inf"),
        ({"boundary_costs": np.zeros((2, 6, 1))}, r"shape \(2, 6, 1\); it must be \(2, 5, 1\)"),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    """The error names the argument, its value and the rule."""
    arguments = {"layer_costs": LAYERS, "boundary_costs": BOUNDARIES, "num_stages": 2} | changes
    with pytest.raises(ValueError, match=message):
        apss_jax.partition(**arguments)


def test_import_is_cheap() -> None:
    """Neither the package nor the module of `partition` imports numba or JAX."""
    code = "import sys, apss_jax.policy.solve; print({'numba', 'jax'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
