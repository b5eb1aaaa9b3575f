"""Problems of order and cuts as the network sees them: device types, links, what may follow."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float16, Float32, Float64, Int32

from apss_jax.partitioning.detours import detours
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import is_lattice_small

TYPES: Final = 4
"""Device types of a problem, at most."""

SIZES: Final = ((8, 80, 1024), (16, 100, 4096), (32, 160, 16384), (64, 162, 262144))
"""Stages, offsets and states that programs are compiled for."""

TYPE_FEATURES: Final = 23
_LARGEST: Final = 8.0

LONGEST_DETOUR: Final = 0.5
"""What the network sees of longer detours, and of those that nobody looked for."""


class PlacementInput(NamedTuple):
    """One problem, or many with a leading axis."""

    types: Float32[Any, "*batch device_types features"]
    """What is known of each type and of the whole problem."""
    links: Float32[Any, "*batch device_types device_types"]
    """Logarithm of what a message between two types takes."""
    share: Float32[Any, "*batch device_types"]
    """What a stage of the type can compute, relative to the mean."""
    counts: Int32[Any, "*batch device_types"]
    node_stages: Int32[Any, "*batch device_types"]
    strides: Int32[Any, "*batch device_types"]
    furthest: Int32[Any, "*batch stages device_types offsets"]
    first_start: Int32[Any, "*batch _"]
    num_stages: Int32[Any, "*batch"]
    detours: Float16[Any, "*batch _ device_types"]
    """How much longer than its optimum the closed form gets: by what is used, and the last type."""


def placement_size(instances: Sequence[JointInstance]) -> tuple[int, int, int]:
    """Returns the padded sizes that hold all problems; raises ValueError beyond the largest."""
    needed = [_needed(each) for each in instances]
    most = tuple(max(sizes) for sizes in zip(*needed, strict=True))
    most_types = max(each.num_types for each in instances)
    for size in SIZES:
        if all(a <= b for a, b in zip(most, size, strict=True)) and most_types <= TYPES:
            return size
    raise ValueError(
        f"{most_types} device types, {most[0]} stages, {most[1] - 1} layers and {most[2]} states; "
        f"the network takes at most {TYPES} types and {SIZES[-1]}"
    )


def has_size(instance: JointInstance) -> bool:
    """Tells whether the network takes a problem."""
    is_within = all(a <= b for a, b in zip(_needed(instance), SIZES[-1], strict=True))
    return instance.num_types <= TYPES and is_within


def _needed(instance: JointInstance) -> tuple[int, int, int]:
    from apss_jax.policy.lattice import num_states, usable_counts

    states = num_states(usable_counts(instance))
    return instance.num_stages, instance.num_layers + 1, states


def placement_inputs(
    instances: Sequence[JointInstance], size: tuple[int, int, int] | None = None
) -> tuple[PlacementInput, Bool[np.ndarray, "batch"]]:
    """Returns the problems in one size, and which of them have an order that fits the memory."""
    from apss_jax.policy import lattice

    stages, offsets, states = size or placement_size(instances)
    batch = len(instances)
    inputs = PlacementInput(
        types=np.zeros((batch, TYPES, TYPE_FEATURES), np.float32),
        links=np.zeros((batch, TYPES, TYPES), np.float32),
        share=np.zeros((batch, TYPES), np.float32),
        counts=np.zeros((batch, TYPES), np.int32),
        node_stages=np.ones((batch, TYPES), np.int32),
        strides=np.zeros((batch, TYPES), np.int32),
        furthest=np.zeros((batch, stages, TYPES, offsets), np.int32),
        first_start=np.full((batch, states), lattice.NOWHERE, np.int32),
        num_stages=np.ones(batch, np.int32),
        detours=np.full((batch, states, TYPES), LONGEST_DETOUR, np.float16),
    )
    fits = np.zeros(batch, bool)
    for row, instance in enumerate(instances):
        fits[row] = _write(inputs, row, instance)
    return inputs, fits


def _write(inputs: PlacementInput, row: int, instance: JointInstance) -> bool:
    from apss_jax.policy import lattice

    types = instance.num_types
    used = slice(types)
    furthest = np.zeros((instance.num_stages, types, instance.num_layers + 1), np.int32)
    counts = lattice.usable_counts(instance)
    states = lattice.num_states(counts)
    fits = lattice.memory_tables(instance, furthest, inputs.first_start[row, :states])
    inputs.furthest[row, : instance.num_stages, used, : instance.num_layers + 1] = furthest
    inputs.counts[row, used] = counts
    inputs.node_stages[row, used] = instance.node_stages
    inputs.strides[row, used] = lattice.strides_of(counts)
    inputs.num_stages[row] = instance.num_stages
    if fits and is_lattice_small(instance):
        inputs.detours[row, :states, used] = np.clip(detours(instance), 0.0, LONGEST_DETOUR)
    speed = 1.0 / (instance.type_forward_s + instance.type_backward_s).sum(axis=1)
    mean_speed = (speed * instance.counts).sum() / instance.counts.sum()
    unit_s = 1.0 / (mean_speed * instance.num_stages)
    sent = _link_s(instance) / unit_s
    links = np.log(sent + 1e-3) / 3
    inputs.share[row, used] = speed / mean_speed
    inputs.links[row, used, used] = links
    columns = _columns(instance, speed / mean_speed, links, unit_s)
    inputs.types[row, used] = np.clip(columns, -_LARGEST, _LARGEST)
    return fits


def _link_s(instance: JointInstance) -> Float64[np.ndarray, "device_types device_types"]:
    """Returns what a usual message takes between two types, between nodes."""
    usual = float(np.median(instance.boundary_bytes))
    return 2 * (usual * instance.link_s_per_byte + instance.link_s_per_call)


def _columns(
    instance: JointInstance,
    share: Float64[np.ndarray, "device_types"],
    links: Float64[np.ndarray, "device_types device_types"],
    unit_s: float,
) -> Float64[np.ndarray, "device_types features"]:
    """Returns the features of each type, those of the whole problem repeated."""
    stages, micro_batches = instance.num_stages, instance.num_micro_batches
    held = min(stages, micro_batches)
    states, saved = instance.state_bytes.sum(), instance.saved_bytes.sum()
    room = np.clip(instance.capacity_bytes * stages / (states + saved * held / 2), 0.0, 4.0)
    usual = float(np.median(instance.boundary_bytes))
    inside = 2 * (usual * instance.node_s_per_byte + instance.node_s_per_call) / unit_s
    gradient = np.log1p(instance.type_gradient_s.sum(axis=1) / stages / unit_s)
    own = [
        *(-np.log(share), share, room, room < 1.2, instance.counts / stages),
        *(np.log(inside + 1e-3) / 3, links.max(axis=1), links.min(axis=1), links.mean(axis=1)),
        *(gradient, instance.node_stages > 1),
    ]
    time = (instance.type_forward_s + instance.type_backward_s).mean(axis=0)
    head = time[-1] / time.sum() * stages
    whole = [
        *(np.log(micro_batches) / 3, np.log(micro_batches / stages), stages / 16, head),
        *(np.log(head + 1e-3), instance.state_bytes[0] * stages / states),
        *(saved * held / (states + saved * held + 1e-30), instance.num_layers / stages / 4),
        *(room.min(), np.exp(3 * links.max()), instance.num_types / 4, gradient.max()),
    ]
    repeated = [np.full(len(share), value) for value in whole]
    return np.stack([*(np.asarray(column, float) for column in own), *repeated], axis=1)
