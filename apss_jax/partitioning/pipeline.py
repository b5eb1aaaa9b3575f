"""One pipeline on given devices, and how long a step takes when its schedule is followed.

A closed form adds up and takes maxima; it is blind to where the slow stages and links stand, and to
which stage ends last. Here every micro-batch passes every stage, as in `apss_jax.cost.simulate`.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from apss_jax.partitioning.flow import Flow, Schedule, prefix_sums
from apss_jax.partitioning.instance import (
    MEMORY_SLACK_FRACTION,
    PartitionInstance,
    require_costs,
    require_cuts,
)


@dataclass(frozen=True)
class PipelineInstance:
    """Times and bytes of every layer on every piece; piece p is chunk p // stages of a stage.

    The stage is p % stages; without virtual stages, pieces are stages. Raises ValueError if a
    shape, a sign or a NaN makes no problem of them.
    """

    forward_s: Float64[np.ndarray, "pieces layers"]
    """One micro-batch through the layer if the piece holds it."""
    backward_s: Float64[np.ndarray, "pieces layers"]
    """The same, backward."""
    transfer_s: Float64[np.ndarray, "boundaries cuts"]
    """One message over boundary j when its cut is after layer i, at [i, j], in either direction."""
    gradient_s: Float64[np.ndarray, "pieces layers"]
    """The layer's part of what its stage does after its last backward pass, once a step."""
    state_bytes: Float64[np.ndarray, "layers"]
    """Weights, gradients and optimizer of the layer on one device."""
    saved_bytes: Float64[np.ndarray, "layers"]
    """What the layer keeps for each micro-batch between its passes."""
    in_flight: Int64[np.ndarray, "pieces"]
    """Micro-batches that a piece keeps when its stage keeps most."""
    capacity_bytes: Float64[np.ndarray, "stages"]
    """What the chunks of a stage may hold together; inf if unlimited."""
    num_micro_batches: int
    """Micro-batches of one step."""
    virtual_stages: int = 1
    """Chunks of each stage: 1 runs 1F1B, more run interleaved 1F1B."""
    blocking_fraction: float = 0.0
    """Share of a transfer in which its sender waits."""

    def __post_init__(self) -> None:
        if self.virtual_stages < 1 or self.num_micro_batches < 1:
            raise ValueError(
                f"virtual_stages is {self.virtual_stages} and num_micro_batches is "
                f"{self.num_micro_batches}; both must be positive"
            )
        stages = len(self.capacity_bytes)
        pieces, layers = stages * self.virtual_stages, len(self.state_bytes)
        if not 1 <= pieces <= layers:
            raise ValueError(f"{pieces} pieces for {layers} layers; each piece needs a layer")
        if self.virtual_stages > 1 and (stages < 2 or self.num_micro_batches % stages):
            raise ValueError(
                f"{self.num_micro_batches} micro-batches on {stages} stages cannot be interleaved; "
                "they must be a multiple of two stages or more"
            )
        for name, shape in _shapes(stages, pieces, layers).items():
            may_be_inf = name in ("transfer_s", "capacity_bytes")
            require_costs(name, getattr(self, name), shape, may_be_inf=may_be_inf)

    @property
    def num_pieces(self) -> int:
        """The number of pieces that the layers are cut into."""
        return len(self.forward_s)

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.capacity_bytes)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.state_bytes)

    @property
    def held_bytes(self) -> Float64[np.ndarray, "pieces layers"]:
        """What a layer takes of its stage's memory if the piece holds it."""
        return self.state_bytes + self.in_flight[:, None] * self.saved_bytes

    def flow(self) -> Flow:
        """Returns the problem in the form that compiled code reads: every piece a row."""
        pieces = np.arange(self.num_pieces)
        sent_s = np.zeros((self.num_pieces, self.num_layers + 1))
        sent_s[:-1, 1:-1] = self.transfer_s.T
        return Flow(
            sums=prefix_sums(np.stack([self.forward_s, self.backward_s, self.gradient_s])),
            sent=sent_s,
            held=prefix_sums(np.stack([self.state_bytes, self.saved_bytes])),
            places=np.stack([pieces, pieces, self.in_flight]),
            allowed_bytes=self.capacity_bytes * (1 + MEMORY_SLACK_FRACTION),
            schedule=Schedule.of(self.num_stages, self.num_micro_batches, self.virtual_stages),
            blocking_fraction=self.blocking_fraction,
        )

    def closed_form(self) -> PartitionInstance:
        """Returns the problem as the closed form sees it: both messages, one chain of pieces.

        The chunks of a stage share its memory in equal parts there.
        """
        share_bytes = self.capacity_bytes / self.virtual_stages
        return PartitionInstance(
            layer_cost_s=self.forward_s + self.backward_s,
            boundary_cost_s=2.0 * self.transfer_s,
            gradient_cost_s=self.gradient_s,
            memory_bytes=self.held_bytes,
            capacity_bytes=np.tile(share_bytes, self.virtual_stages),
            num_micro_batches=self.num_micro_batches * self.virtual_stages,
        )


def stage_bytes(
    instance: PipelineInstance, cuts: Int64[np.ndarray, "cuts"]
) -> Float64[np.ndarray, "stages"]:
    """Returns what each stage holds, all its chunks together."""
    require_cuts(cuts, instance.num_pieces, instance.num_layers)
    starts = np.concatenate([[0], cuts + 1])
    states = np.add.reduceat(instance.state_bytes, starts)
    saved = np.add.reduceat(instance.saved_bytes, starts)
    held = states + instance.in_flight * saved
    return held.reshape(instance.virtual_stages, instance.num_stages).sum(axis=0)


def fits(instance: PipelineInstance, cuts: Int64[np.ndarray, "cuts"]) -> bool:
    """Tells whether every stage stays within its capacity, rounding aside."""
    allowed_bytes = instance.capacity_bytes * (1 + MEMORY_SLACK_FRACTION)
    return bool(np.all(stage_bytes(instance, cuts) <= allowed_bytes))


def simulated_step_s(instance: PipelineInstance, cuts: Int64[np.ndarray, "cuts"]) -> float:
    """Returns the time of one step as `apss_jax.cost.simulate` has it, in float64."""
    return float(simulated_steps_s(instance, np.asarray(cuts)[None])[0])


def simulated_steps_s(
    instance: PipelineInstance, cuts: Int64[np.ndarray, "batch cuts"]
) -> Float64[np.ndarray, "batch"]:
    """Returns the time of one step for each row of cuts."""
    for row in cuts:
        require_cuts(row, instance.num_pieces, instance.num_layers)
    return instance.flow().steps_s(offsets_of(cuts, instance.num_layers))


def offsets_of(
    cuts: Int64[np.ndarray, "*batch cuts"], num_layers: int
) -> Int64[np.ndarray, "*batch offsets"]:
    """Returns where pieces begin and the last one ends."""
    ends = [(0, 0)] * (cuts.ndim - 1)
    offsets = np.pad(cuts + 1, [*ends, (1, 1)])
    offsets[..., -1] = num_layers
    return offsets


def _shapes(stages: int, pieces: int, layers: int) -> dict[str, tuple[int, ...]]:
    return {
        **dict.fromkeys(("forward_s", "backward_s", "gradient_s"), (pieces, layers)),
        "transfer_s": (layers - 1, pieces - 1),
        **dict.fromkeys(("state_bytes", "saved_bytes"), (layers,)),
        "in_flight": (pieces,),
        "capacity_bytes": (stages,),
    }
