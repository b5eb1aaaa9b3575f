"""Pipelines whose devices are still open: which type each stage gets, within what there is."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int, Int64

from apss_jax.partitioning.flow import Flow, Schedule, prefix_sums
from apss_jax.partitioning.instance import MEMORY_SLACK_FRACTION, require_costs
from apss_jax.partitioning.pipeline import PipelineInstance

Order = Int[np.ndarray, "stages"]
"""The device type of each stage."""


@dataclass(frozen=True)
class JointInstance:
    """What every layer costs on every type of device, and how many stages each type can fill.

    Stages of one type are alike but for where they stand: its first `node_stages` stages in the
    order of the pipeline are on one node, the next on another. Raises ValueError if a shape, a
    sign or a NaN makes no problem of them, or if the devices are too few.
    """

    type_forward_s: Float64[np.ndarray, "device_types layers"]
    """One micro-batch through the layer."""
    type_backward_s: Float64[np.ndarray, "device_types layers"]
    """The same, backward."""
    type_gradient_s: Float64[np.ndarray, "device_types layers"]
    """The layer's part of what its stage does after its last backward pass, once a step."""
    counts: Int64[np.ndarray, "device_types"]
    """Stages that the devices of each type can fill."""
    node_stages: Int64[np.ndarray, "device_types"]
    """Stages that one node holds."""
    link_s_per_byte: Float64[np.ndarray, "device_types device_types"]
    """From a stage of one type to the next of another; between nodes where both are the same."""
    link_s_per_call: Float64[np.ndarray, "device_types device_types"]
    """What a message takes beside its bytes."""
    node_s_per_byte: Float64[np.ndarray, "device_types"]
    """Between neighbouring stages of one node."""
    node_s_per_call: Float64[np.ndarray, "device_types"]
    """What a message takes beside its bytes, in a node."""
    boundary_bytes: Float64[np.ndarray, "boundaries"]
    """One message if the cut is after the layer."""
    state_bytes: Float64[np.ndarray, "layers"]
    """Weights, gradients and optimizer of the layer on one device."""
    saved_bytes: Float64[np.ndarray, "layers"]
    """What the layer keeps for each micro-batch between its passes."""
    capacity_bytes: Float64[np.ndarray, "device_types"]
    """What a device of the type may hold; inf if unlimited."""
    num_micro_batches: int
    """Micro-batches of one step."""
    num_stages: int
    """Stages to fill."""
    blocking_fraction: float = 0.0
    """Share of a transfer in which its sender waits."""

    def __post_init__(self) -> None:
        types, layers = len(self.counts), len(self.state_bytes)
        if self.num_micro_batches < 1 or not 1 <= self.num_stages <= layers:
            raise ValueError(
                f"{self.num_stages} stages, {layers} layers, {self.num_micro_batches} "
                "micro-batches; each stage needs a layer, and each step a micro-batch"
            )
        for name, shape in _shapes(types, layers).items():
            may_be_inf = name == "capacity_bytes"
            require_costs(name, getattr(self, name), shape, may_be_inf=may_be_inf)
        if self.counts.sum() < self.num_stages or np.any(self.node_stages < 1):
            raise ValueError(
                f"counts are {self.counts.tolist()} and node_stages {self.node_stages.tolist()}; "
                f"they must fill {self.num_stages} stages, and a node holds one at least"
            )

    @property
    def num_types(self) -> int:
        """The number of device types."""
        return len(self.counts)

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.state_bytes)

    @property
    def in_flight(self) -> Int64[np.ndarray, "stages"]:
        """What each stage of 1F1B keeps at most, whatever its device."""
        stage = np.arange(self.num_stages)
        return np.minimum(self.num_stages - stage, self.num_micro_batches).astype(np.int64)

    @cached_property
    def allowed_bytes(self) -> Float64[np.ndarray, "device_types"]:
        """What a device of each type may hold, rounding included."""
        return self.capacity_bytes * (1 + MEMORY_SLACK_FRACTION)

    @cached_property
    def sums(self) -> Float64[np.ndarray, "passes device_types offsets"]:
        """Forward, backward and tail over all layers before."""
        own = (self.type_forward_s, self.type_backward_s, self.type_gradient_s)
        return prefix_sums(np.stack(own))

    @cached_property
    def held(self) -> Float64[np.ndarray, "2 offsets"]:
        """States, and what is saved for a micro-batch, of all layers before."""
        return prefix_sums(np.stack([self.state_bytes, self.saved_bytes]))

    @cached_property
    def sent(self) -> Float64[np.ndarray, "_ offsets"]:
        """One message by where it is cut: for each pair of types, then inside a node of each."""
        per_byte = np.concatenate([self.link_s_per_byte.ravel(), self.node_s_per_byte])
        per_call = np.concatenate([self.link_s_per_call.ravel(), self.node_s_per_call])
        sent_s = np.zeros((len(per_byte), self.num_layers + 1))
        sent_s[:, 1:-1] = per_byte[:, None] * self.boundary_bytes + per_call[:, None]
        return sent_s

    def links_of(self, order: Order) -> Order:
        """Returns the row of `sent` for each stage's messages to the next; the last sends none."""
        here, there = order[:-1], order[1:]
        is_inside = (here == there) & (_places(order)[1:] % self.node_stages[there] > 0)
        pairs = self.num_types**2
        links = np.where(is_inside, pairs + here, here * self.num_types + there)
        return np.append(links, 0)

    def flow(self, order: Order) -> Flow:
        """Returns the pipeline on given types as compiled code reads it."""
        return Flow(
            sums=self.sums,
            sent=self.sent,
            held=self.held,
            places=np.stack([order, self.links_of(order), self.in_flight]),
            allowed_bytes=self.allowed_bytes[order],
            schedule=Schedule.of(self.num_stages, self.num_micro_batches, 1),
            blocking_fraction=self.blocking_fraction,
        )

    def ordered(self, order: Order) -> PipelineInstance:
        """Returns the pipeline on given types; raises ValueError if there are too few of one."""
        order = np.asarray(order, np.int64)
        require_order(self, order)
        return PipelineInstance(
            forward_s=self.type_forward_s[order],
            backward_s=self.type_backward_s[order],
            transfer_s=self.sent[self.links_of(order)[:-1], 1:-1].T.copy(),
            gradient_s=self.type_gradient_s[order],
            state_bytes=self.state_bytes,
            saved_bytes=self.saved_bytes,
            in_flight=self.in_flight,
            capacity_bytes=self.capacity_bytes[order],
            num_micro_batches=self.num_micro_batches,
            blocking_fraction=self.blocking_fraction,
        )


def require_order(instance: JointInstance, order: Order) -> None:
    """Raises ValueError unless every stage gets a type, and none is used beyond its count."""
    known = np.all((order >= 0) & (order < instance.num_types))
    if len(order) != instance.num_stages or not known:
        raise ValueError(
            f"order is {order.tolist()}; it must be {instance.num_stages} types from 0 to "
            f"{instance.num_types - 1}"
        )
    used = np.bincount(order, minlength=instance.num_types)
    if np.any(used > instance.counts):
        raise ValueError(f"order uses {used.tolist()} of {instance.counts.tolist()} stages")


def _places(order: Order) -> Order:
    """Returns how many stages before each one are of its type."""
    same = order[:, None] == order
    return np.tril(same, -1).sum(axis=1)


def _shapes(types: int, layers: int) -> dict[str, tuple[int, ...]]:
    by_layer = ("type_forward_s", "type_backward_s", "type_gradient_s")
    by_type = ("counts", "node_stages", "node_s_per_byte", "node_s_per_call", "capacity_bytes")
    return {
        **dict.fromkeys(by_layer, (types, layers)),
        **dict.fromkeys(by_type, (types,)),
        **dict.fromkeys(("link_s_per_byte", "link_s_per_call"), (types, types)),
        "boundary_bytes": (layers - 1,),
        **dict.fromkeys(("state_bytes", "saved_bytes"), (layers,)),
    }
