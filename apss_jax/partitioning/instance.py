"""One partitioning problem, what a partition of it costs, and whether it fits the memory.

With T, C, D the time, boundary and gradient costs and B micro-batches, a partition costs

    sum_s T_s + (B - 1) * max_s T_s + sum_s C_s + max_s D_s

which is the time of one step of a synchronous pipeline in closed form: the fill, then one round of
the slowest stage for every further micro-batch, then the slowest gradient reduction.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Float64, Int, Num

MEMORY_SLACK_FRACTION: Final = 1e-9
"""What a stage may exceed its capacity by: the rounding of a sum of bytes, not memory."""


@dataclass(frozen=True)
class PartitionInstance:
    """Costs of every layer on every stage, so that stages may run on different devices.

    Raises ValueError if a shape, a sign or a NaN makes no problem of them.
    """

    layer_cost_s: Float64[np.ndarray, "stages layers"]
    """One micro-batch, forward and backward, through the layer if the stage holds it."""
    boundary_cost_s: Float64[np.ndarray, "boundaries cuts"]
    """Boundary j of one micro-batch when its cut is after layer i, at [i, j]; inf forbids it."""
    gradient_cost_s: Float64[np.ndarray, "stages layers"]
    """The layer's part of the stage's gradient reduction and optimizer, once a step."""
    memory_bytes: Float64[np.ndarray, "stages layers"]
    """The layer's memory if the stage holds it, all micro-batches in flight there included."""
    capacity_bytes: Float64[np.ndarray, "stages"]
    """What a device of the stage can hold; inf if unlimited."""
    num_micro_batches: int
    """Micro-batches of one step, B."""

    def __post_init__(self) -> None:
        if self.layer_cost_s.ndim != 2:
            raise ValueError(f"layer_cost_s has {self.layer_cost_s.ndim} axes; it needs 2")
        stages, layers = self.layer_cost_s.shape
        if not 1 <= stages <= layers:
            raise ValueError(f"{stages} stages for {layers} layers; each stage needs a layer")
        for name, shape in _shapes(stages, layers).items():
            require_costs(name, getattr(self, name), shape, may_be_inf=name in _MAY_BE_INF)
        if self.num_micro_batches < 1:
            raise ValueError(f"num_micro_batches is {self.num_micro_batches}; it must be positive")

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return int(self.layer_cost_s.shape[0])

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return int(self.layer_cost_s.shape[1])


_MAY_BE_INF = ("boundary_cost_s", "capacity_bytes")


def _shapes(stages: int, layers: int) -> dict[str, tuple[int, ...]]:
    return {
        "layer_cost_s": (stages, layers),
        "boundary_cost_s": (layers - 1, stages - 1),
        "gradient_cost_s": (stages, layers),
        "memory_bytes": (stages, layers),
        "capacity_bytes": (stages,),
    }


def require_costs(
    name: str, values: Num[np.ndarray, "..."], shape: tuple[int, ...], *, may_be_inf: bool = False
) -> None:
    """Raises ValueError, naming the first wrong entry, unless `values` are costs of that shape."""
    if values.shape != shape:
        raise ValueError(f"{name} has shape {values.shape}; it must be {shape}")
    good = values >= 0 if may_be_inf else np.isfinite(values) & (values >= 0)
    if not good.all():
        where = tuple(int(i) for i in np.argwhere(~good)[0])
        rule = "zero or positive" if may_be_inf else "finite, and zero or positive"
        raise ValueError(f"{name}{list(where)} is {values[where]}; it must be {rule}")


def timing_instance(
    layer_cost_s: Float[np.ndarray, "stages layers"],
    boundary_cost_s: Float[np.ndarray, "boundaries cuts"],
    num_micro_batches: int,
) -> PartitionInstance:
    """Returns the problem of time alone: memory is unlimited and no gradients are reduced."""
    layer_cost_s = np.asarray(layer_cost_s, np.float64)
    return PartitionInstance(
        layer_cost_s=layer_cost_s,
        boundary_cost_s=np.asarray(boundary_cost_s, np.float64),
        gradient_cost_s=np.zeros_like(layer_cost_s),
        memory_bytes=np.zeros_like(layer_cost_s),
        capacity_bytes=np.full(layer_cost_s.shape[:1], np.inf),
        num_micro_batches=num_micro_batches,
    )


def stage_sums(
    values: Float[np.ndarray, "stages layers"], cuts: Int[np.ndarray, "cuts"]
) -> Float64[np.ndarray, "stages"]:
    """Returns the sum over the layers of each stage, of the figures for that stage."""
    require_cuts(cuts, *values.shape)
    ends = [*(np.asarray(cuts) + 1), values.shape[1]]
    starts = [0, *ends[:-1]]
    sums = [row[a:b].sum() for row, a, b in zip(values, starts, ends, strict=True)]
    return np.array(sums, np.float64)


def closed_form_cost_s(instance: PartitionInstance, cuts: Int[np.ndarray, "cuts"]) -> float:
    """Returns the objective of a partition, whether or not it fits the memory."""
    time_s = stage_sums(instance.layer_cost_s, cuts)
    gradient_s = stage_sums(instance.gradient_cost_s, cuts)
    boundary_s = instance.boundary_cost_s[cuts, np.arange(len(cuts))].sum()
    rounds = instance.num_micro_batches - 1
    return float(time_s.sum() + rounds * time_s.max() + boundary_s + gradient_s.max())


def fits_memory(instance: PartitionInstance, cuts: Int[np.ndarray, "cuts"]) -> bool:
    """Tells whether every stage stays within its capacity, rounding aside."""
    used_bytes = stage_sums(instance.memory_bytes, cuts)
    return bool(np.all(used_bytes <= instance.capacity_bytes * (1 + MEMORY_SLACK_FRACTION)))


def require_cuts(cuts: Any, stages: int, layers: int) -> None:
    """Raises ValueError unless the cuts leave no stage empty."""
    bounds = [-1, *np.asarray(cuts).tolist(), layers - 1]
    if len(bounds) != stages + 1 or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(
            f"cuts are {bounds[1:-1]}; {stages} stages of {layers} layers need {stages - 1} "
            f"ascending cuts from 0 to {layers - 2}"
        )
