"""Compiled programs of one unit: forward, and backward from what the forward pass kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from apss_jax.schema.plan import Recompute
from profiler.layers import Given, Unit

SCAN_LAYERS: Final = (2, 4)  # of the two programs whose difference is what a layer keeps
# A program does at least this share of the products that its weights ask for; XLA counts a few
# operations more or less than the formula, a program whose work was folded away far less.
LEAST_WORK_FRACTION: Final = 0.9


Parameters = Float[Array, " _"]
"""All parameters of a device side by side, or one figure of the optimizer for each."""


class MissingWork(Exception):
    """A compiled program does less than it is timed for: part of it was folded or dropped."""


@dataclass(frozen=True)
class Passes:
    """Both passes of a unit as calls that may be repeated, and what the compiler says of them."""

    forward: Callable[[], Any]
    backward: Callable[[], Any] | None
    saved_bytes: int | None
    workspace_bytes: int | None
    forward_flops: float | None
    backward_flops: float | None
    compiled_flops: float | None = None  # of the forward program that runs


def passes_of(unit: Unit, recompute: Recompute = "none") -> Passes:
    """Returns the compiled passes on weights and input of their own.

    Weights are arguments, since the compiler folds a constant; the output is returned, since it
    drops what nobody reads. The forward pass returns what it keeps, and the backward program has
    only that: it repeats what recomputation repeats, and nothing else.
    """
    weights, given = unit.weights(), unit.input()
    forward = jax.jit(pass_with_residuals(unit, recompute)).lower(weights, given)
    run_forward = forward.compile()
    output, pullback = run_forward(weights, given)
    gradient = jnp.ones_like(output)
    backward = jax.jit(lambda pull, gradient: pull(gradient)).lower(pullback, gradient)
    run_backward = backward.compile()
    workspaces = [workspace_bytes(run) for run in (run_forward, run_backward)]
    return Passes(
        forward=lambda: run_forward(weights, given),
        backward=lambda: run_backward(pullback, gradient),
        saved_bytes=kept_bytes(pullback, weights),
        workspace_bytes=None if None in workspaces else max(b for b in workspaces if b is not None),
        forward_flops=flops_of(forward),
        backward_flops=flops_of(backward),
        compiled_flops=flops_of(run_forward),
    )


def pass_with_residuals(unit: Unit, recompute: Recompute) -> Callable[[Any, Given], Any]:
    """Returns the function from weights and input to the output and the pullback."""
    apply = jax.checkpoint(unit.apply) if recompute == "full" else unit.apply

    def run(weights: Any, given: Given) -> Any:
        if unit.num_tokens:  # ids have no gradient
            return jax.vjp(lambda w: apply(w, given), weights)
        return jax.vjp(apply, weights, given)

    return run


def update_passes(num_parameters: int, dtype: str) -> Passes:
    """Returns Adam on FP32 state as a forward pass; a narrower dtype adds the copy trained with.

    The state is donated and handed on, as in training: a second copy of it would not fit.
    """
    state = [jnp.full(num_parameters, value, jnp.float32) for value in (1.0, 0.0, 0.0)]
    gradient = jnp.full(num_parameters, 1e-3, dtype)
    program = jax.jit(_adam, donate_argnums=0).lower(state, gradient)
    run = program.compile()
    held = {"state": state}

    def update() -> Any:
        held["state"], copy = run(held["state"], gradient)
        return held["state"], copy

    return Passes(update, None, None, workspace_bytes(run), flops_of(program), None)


def _adam(state: list[Parameters], gradient: Parameters) -> tuple[list[Parameters], Parameters]:
    weight, mean, square = state
    wide = gradient.astype(jnp.float32)
    mean = 0.9 * mean + 0.1 * wide
    square = 0.95 * square + 0.05 * jnp.square(wide)
    weight = weight - 1e-4 * (mean / (jnp.sqrt(square) + 1e-8) + 0.1 * weight)
    return [weight, mean, square], weight.astype(gradient.dtype)


def workspace_bytes(program: Any) -> int | None:
    """Returns what a compiled program takes beside arguments and results; None if not told."""
    try:
        return int(program.memory_analysis().temp_size_in_bytes)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def flops_of(program: Any) -> float | None:
    """Returns the operations of a lowered or compiled program without loops; None if not told.

    The compiler counts the body of a loop once, so none of what is timed here has one.
    """
    try:
        counted = program.cost_analysis()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    found = counted.get("flops") if isinstance(counted, dict) else None
    return float(found) if found is not None and found > 0 else None


def kept_bytes(pullback: Any, weights: Any) -> int:
    """Returns the bytes that a pullback holds, weights aside; works on shapes as on arrays.

    Weights are there whether or not they are kept, so each leaf that looks like one is not counted.
    """
    own = Counter((w.shape, str(w.dtype)) for w in jax.tree.leaves(weights))
    total = 0
    for leaf in jax.tree.leaves(pullback):
        look = (leaf.shape, str(leaf.dtype))
        if own[look]:
            own[look] -= 1
        else:
            total += math.prod(leaf.shape) * leaf.dtype.itemsize
    return total


def scanned_bytes(unit: Unit) -> int | None:
    """Returns what one of many layers keeps, by the growth of a scan over layers; None if unknown.

    Inside one program XLA keeps less than a pullback holds: values that are cheap are made again.
    The scan is never timed, and unlike unrolled layers its recomputation is not merged away.
    """
    if not unit.chains:
        return None
    needs = [_scan_workspace_bytes(unit, layers) for layers in SCAN_LAYERS]
    if None in needs:
        return None
    few, many = (need for need in needs if need is not None)
    grown = (many - few) / (SCAN_LAYERS[1] - SCAN_LAYERS[0])
    return round(grown) if grown > 0 else None


def _scan_workspace_bytes(unit: Unit, layers: int) -> int | None:
    def loss(weights: Any, given: Given) -> Float[Array, ""]:
        def step(x: Given, own: Any) -> tuple[Given, None]:
            return unit.apply(own, x).astype(x.dtype), None

        return jnp.sum(jax.lax.scan(step, given, weights)[0].astype(jnp.float32))

    weights = {
        name: jax.ShapeDtypeStruct((layers, *shape), unit.dtype)
        for name, shape in unit.weight_shapes.items()
    }
    given = jax.ShapeDtypeStruct(unit.input_shape, unit.dtype)
    return workspace_bytes(jax.jit(jax.grad(loss, argnums=(0, 1))).lower(weights, given).compile())


def check_work(name: str, counted_flops: float | None, expected_flops: float) -> None:
    """Raises `MissingWork` where a program does less than its weights ask for."""
    counted_flops = counted_flops or 0.0
    if counted_flops < LEAST_WORK_FRACTION * expected_flops:
        raise MissingWork(
            f"the program of {name} does {counted_flops:.3g} operations where its weights ask for "
            f"{expected_flops:.3g}"
        )
