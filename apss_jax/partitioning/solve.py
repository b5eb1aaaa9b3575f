"""What solvers cut for people who bring their own costs, and what they may bring."""

from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from apss_jax.partitioning.balanced import balanced_cuts, uniform_cuts
from apss_jax.partitioning.exact import exact_cuts
from apss_jax.partitioning.instance import require_costs

SOLVERS: Final = ("exact", "balanced", "uniform")
"""Who cuts: the optimum, equal layer costs, equal numbers of layers."""


def reference_cuts(
    layer_cost_s: Float64[np.ndarray, "batch layers"],
    boundary_cost_s: Float64[np.ndarray, "batch boundaries cuts"],
    num_micro_batches: int,
    solver: str,
) -> Int64[np.ndarray, "batch cuts"]:
    """Returns where one of `SOLVERS` cuts each model that `require_problem` let pass."""
    (batch, layers), num_stages = layer_cost_s.shape, boundary_cost_s.shape[2] + 1
    if solver == "exact":
        return exact_cuts(layer_cost_s, boundary_cost_s, num_micro_batches)
    if solver == "uniform":
        return np.tile(uniform_cuts(layers, num_stages), (batch, 1))
    rows = [balanced_cuts(costs, num_stages) for costs in layer_cost_s]
    return np.array(rows, np.int64).reshape(batch, num_stages - 1)


def require_problem(
    layer_costs: ArrayLike,
    boundary_costs: ArrayLike,
    *,
    num_stages: int,
    num_micro_batches: int,
    samples: int,
) -> tuple[Float64[np.ndarray, "batch layers"], Float64[np.ndarray, "batch boundaries cuts"]]:
    """Returns the costs as arrays; raises ValueError unless they and the counts make a problem."""
    for name, value in (
        ("num_stages", num_stages),
        ("num_micro_batches", num_micro_batches),
        ("samples", samples),
    ):
        _require_count(name, value)
    layer_cost_s = _require_array("layer_costs", layer_costs, axes=2)
    boundary_cost_s = _require_array("boundary_costs", boundary_costs, axes=3)
    batch, layers = layer_cost_s.shape
    if num_stages > layers:
        raise ValueError(
            f"num_stages is {num_stages}; {layers} layers make at most {layers} stages"
        )
    require_costs("layer_costs", layer_cost_s, (batch, layers))
    require_costs("boundary_costs", boundary_cost_s, (batch, layers - 1, num_stages - 1))
    return layer_cost_s, boundary_cost_s


def _require_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 1")


def _require_array(name: str, values: ArrayLike, *, axes: int) -> Any:
    """Returns the values in float64; raises ValueError unless they have that many axes."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} holds {values!r}; it must hold numbers: {error}") from error
    if array.ndim != axes:
        raise ValueError(f"{name} has shape {array.shape}; it must have {axes} axes")
    return array
