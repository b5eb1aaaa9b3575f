"""The compiled programs of one stage: its two passes, its update, its messages to neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from apss_jax.trials.assignment import Assignment
from apss_jax.trials.gpt import TENSOR, Parameters, stage_parameters, stage_specs, through_stage

DATA: Final = "data"
LEARNING_RATE: Final = 1e-2

Residuals = Any
"""What a forward pass keeps for its backward pass: a pytree, as `jax.vjp` returns it."""


@dataclass(frozen=True)
class StagePrograms:
    """The programs of a stage, on the devices of its process."""

    forward: Callable[..., tuple[jax.Array, Residuals]]  # parameters, inputs, targets
    backward: Callable[..., tuple[Parameters, jax.Array]]  # residuals, gradient, sums so far
    update: Callable[[Parameters, Parameters], Parameters]
    parameters: Parameters
    mesh: Mesh
    activation: NamedSharding  # of what the stage receives and hands on

    def zeros(self) -> Parameters:
        """Returns gradients to add to."""
        return jax.tree.map(jnp.zeros_like, self.parameters)


def make_programs(assignment: Assignment, stage: int) -> StagePrograms:
    """Returns the programs of one stage, compiled when first called."""
    degrees = (assignment.data_parallel, assignment.tensor_parallel)
    mesh = Mesh(np.array(jax.local_devices()).reshape(degrees), (DATA, TENSOR))
    parameters = stage_parameters(assignment, stage)
    specs = stage_specs(parameters)
    placed = jax.tree.map(
        lambda weight, spec: jax.device_put(weight, NamedSharding(mesh, spec)), parameters, specs
    )
    run = partial(
        through_stage,
        num_heads=assignment.dimensions.num_heads,
        recompute=assignment.recompute,
    )
    return StagePrograms(
        forward=jax.jit(partial(_forward, run)),
        backward=jax.jit(partial(_backward, stage == 0), donate_argnums=2),
        update=jax.jit(_update, donate_argnums=0),
        parameters=placed,
        mesh=mesh,
        activation=NamedSharding(mesh, Spec(DATA)),
    )


def _forward(
    run: Callable[..., jax.Array], parameters: Parameters, inputs: jax.Array, targets: jax.Array
) -> tuple[jax.Array, Residuals]:
    return jax.vjp(lambda weights, values: run(weights, values, targets), parameters, inputs)


def _backward(
    is_first: bool, residuals: Residuals, gradient: jax.Array, sums: Parameters
) -> tuple[Parameters, jax.Array]:
    """Returns the sums with this micro-batch's gradients added, and the gradient of the input."""
    of_weights, of_inputs = residuals(gradient)
    added = jax.tree.map(jnp.add, sums, of_weights)
    return added, jnp.zeros(()) if is_first else of_inputs  # tokens have no gradient


def _update(parameters: Parameters, gradients: Parameters) -> Parameters:
    return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, parameters, gradients)


@dataclass(frozen=True)
class Channel:
    """Messages between two neighbouring stages; both call the same of the three at a time."""

    forward: Callable[[jax.Array], jax.Array]
    backward: Callable[[jax.Array], jax.Array]
    both: Callable[[jax.Array], jax.Array]
    sharding: NamedSharding
    activation: NamedSharding
    shape: tuple[int, ...]  # of one message: samples, tokens, features

    def blank(self) -> jax.Array:
        """Returns a message of zeros, for the end that only receives."""
        return jax.device_put(jnp.zeros(self.shape), self.activation)

    def call(self, program: Callable[[jax.Array], jax.Array], message: jax.Array) -> jax.Array:
        """Returns what arrived, once it is there."""
        pieces = [shard.data[None] for shard in message.addressable_shards]
        whole = (2 * len(pieces), *pieces[0].shape[1:])
        sent = jax.make_array_from_single_device_arrays(whole, self.sharding, pieces)
        arrived = [shard.data[0] for shard in program(sent).addressable_shards]
        received = jax.make_array_from_single_device_arrays(self.shape, self.activation, arrived)
        return jax.block_until_ready(received)


def make_channel(assignment: Assignment, first: int, programs: StagePrograms) -> Channel:
    """Returns the channel between stage `first` and the next one, as either of them sees it."""
    devices = [
        [device for device in jax.devices() if device.process_index == stage]
        for stage in (first, first + 1)
    ]
    mesh = Mesh(np.array(devices), ("stages", "ranks"))
    split = Spec(("stages", "ranks"))

    def program(pairs: list[tuple[int, int]]) -> Callable[[jax.Array], jax.Array]:
        send = partial(jax.lax.ppermute, axis_name="stages", perm=pairs)
        return jax.jit(
            jax.shard_map(send, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
        )

    sizes = assignment.dimensions
    samples = assignment.micro_batch * assignment.data_parallel
    return Channel(
        forward=program([(0, 1)]),
        backward=program([(1, 0)]),
        both=program([(0, 1), (1, 0)]),
        sharding=NamedSharding(mesh, split),
        activation=programs.activation,
        shape=(samples, sizes.seq_len, sizes.hidden_size),
    )
