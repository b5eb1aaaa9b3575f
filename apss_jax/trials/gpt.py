"""A small GPT cut into stages: parameters of one stage and the pass through it.

Learned embeddings of tokens and places, pre-norm layers with full attention and an MLP of GELU,
and a head of its own, in FP32. What tensor-parallel ranks share is split as in Megatron-LM
(arXiv 1909.08053): columns first, rows second.
"""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Float, Int

from apss_jax.trials.assignment import Assignment, Sizes

TENSOR: Final = "tensor"
SCALE: Final = 0.02
EPSILON: Final = 1e-5

Parameters = dict[str, Any]
Activations = Float[Array, "samples _ features"]
Tokens = Int[Array, "samples _"]
Text = Int[Array, "_ samples _"]

_LAYER_SPECS: Final = {
    "qkv": Spec(None, None, TENSOR),
    "out": Spec(TENSOR, None),
    "up": Spec(None, TENSOR),
    "down": Spec(TENSOR, None),
    "norm_1": Spec(),
    "norm_2": Spec(),
}


def stage_parameters(assignment: Assignment, stage: int) -> Parameters:
    """Returns the weights of one stage; the same whichever stages the model is cut into."""
    sizes = assignment.dimensions
    first = sum(assignment.layers[:stage])
    layers = [_layer(sizes, first + i) for i in range(assignment.layers[stage])]
    found: Parameters = {"layers": layers}
    if stage == 0:
        key = jax.random.key(1_000_000)
        found["tokens"] = _weights(key, sizes.vocab_size, sizes.hidden_size)
        found["places"] = _weights(jax.random.fold_in(key, 1), sizes.seq_len, sizes.hidden_size)
    if stage == assignment.num_stages - 1:
        found["head"] = _weights(jax.random.key(2_000_000), sizes.hidden_size, sizes.vocab_size)
    return found


def stage_specs(parameters: Parameters) -> Parameters:
    """Returns how each weight is split over tensor-parallel ranks."""
    specs: Parameters = {"layers": [dict(_LAYER_SPECS) for _ in parameters["layers"]]}
    ends = {"tokens": Spec(), "places": Spec(), "head": Spec(None, TENSOR)}
    return {**specs, **{name: spec for name, spec in ends.items() if name in parameters}}


def through_stage(
    parameters: Parameters,
    inputs: Activations | Tokens,
    targets: Tokens,
    *,
    num_heads: int,
    recompute: bool,
) -> Array:
    """Returns what a stage hands on, or on the last one the loss, a scalar."""
    values = _embedded(parameters, inputs) if "tokens" in parameters else inputs
    layer = jax.checkpoint(_through_layer, static_argnums=2) if recompute else _through_layer
    for one in parameters["layers"]:
        values = layer(one, values, num_heads)
    if "head" not in parameters:
        return values
    scores = jax.nn.log_softmax(_normalised(values) @ parameters["head"])
    return -jnp.take_along_axis(scores, targets[..., None], axis=-1).mean()


def training_text(assignment: Assignment) -> tuple[Text, Text]:
    """Returns inputs and targets of one global batch: [micro-batches, samples, tokens] each."""
    sizes = assignment.dimensions
    samples = assignment.micro_batch * assignment.data_parallel
    shape = (assignment.num_micro_batches, samples, sizes.seq_len)
    text = jax.random.randint(jax.random.key(0), shape, 0, sizes.vocab_size)
    return text, jnp.roll(text, -1, axis=-1)


def _layer(sizes: Sizes, number: int) -> Parameters:
    keys = jax.random.split(jax.random.key(number), 4)
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    return {
        "qkv": SCALE * jax.random.normal(keys[0], (3, hidden, hidden)),
        "out": _weights(keys[1], hidden, hidden),
        "up": _weights(keys[2], hidden, inner),
        "down": _weights(keys[3], inner, hidden),
        "norm_1": jnp.ones((1, 1, hidden)),
        "norm_2": jnp.ones((1, 1, hidden)),
    }


def _weights(key: Array, rows: int, columns: int) -> Float[Array, "_ _"]:
    return SCALE * jax.random.normal(key, (rows, columns))


def _embedded(parameters: Parameters, tokens: Tokens) -> Activations:
    return parameters["tokens"][tokens] + parameters["places"][None]


def _through_layer(layer: Parameters, values: Activations, num_heads: int) -> Activations:
    values = values + _attention(layer, _normalised(values) * layer["norm_1"], num_heads)
    inner = jax.nn.gelu((_normalised(values) * layer["norm_2"]) @ layer["up"])
    return values + inner @ layer["down"]


def _attention(layer: Parameters, values: Activations, num_heads: int) -> Activations:
    samples, tokens, hidden = values.shape
    query, key, value = (
        (values @ one).reshape(samples, tokens, num_heads, hidden // num_heads)
        for one in layer["qkv"]
    )
    mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
    return mixed.reshape(samples, tokens, hidden) @ layer["out"]


def _normalised(values: Activations) -> Activations:
    mean = values.mean(axis=-1, keepdims=True)
    spread = values.var(axis=-1, keepdims=True)
    return (values - mean) * jax.lax.rsqrt(spread + EPSILON)
