"""What is measured: a function, its weights and its input, for each part of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from apss_jax.schema.cluster import LayerShape, Precision
from apss_jax.schema.layers import Attention, DenseMlp, LatentAttention, Layer, MoeMlp
from profiler.kernels import (
    Hidden,
    LayerPart,
    NotMeasurable,
    Params,
    Shard,
    attention_part,
    latent_attention_part,
    linear,
    mlp_part,
    moe_part,
    norm,
)

DTYPES: Final = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}

Given = Shaped[Array, "samples tokens ..."]
"""One micro-batch: ids of tokens, or the values of each."""

Made = Float[Array, "..."]
"""What a part makes of a micro-batch: values of each token, or a loss."""

UnitFn = Callable[[Params, Given], Made]
"""A part applied to its weights and to a micro-batch."""

# Beyond these steps values repeat, which no kernel notices.
VALUE_STEP: Final = 12.9898


@dataclass(frozen=True)
class Unit:
    """A function of weights and one input, with the shapes of both."""

    apply: UnitFn
    weight_shapes: Mapping[str, tuple[int, ...]]
    input_shape: tuple[int, ...]
    num_tokens: int  # ids that the input may hold; 0: the input is values
    dtype: str
    chains: bool  # its output may be its own next input

    def weights(self) -> dict[str, Made]:
        """Returns weights that keep values in range through a layer."""
        return {
            name: _values(shape, self.dtype, shape[-2] ** -0.5 if len(shape) > 1 else 1.0)
            for name, shape in self.weight_shapes.items()
        }

    def input(self) -> Given:
        """Returns one micro-batch."""
        if self.num_tokens:
            size = int(jnp.prod(jnp.array(self.input_shape)))
            spread = jnp.arange(size, dtype=jnp.uint32) * jnp.uint32(2654435761)
            return (spread % self.num_tokens).astype(jnp.int32).reshape(self.input_shape)
        return _values(self.input_shape, self.dtype, 1.0)


def unit_of(
    shape: LayerShape, precision: Precision, shard: Shard, micro_batch: int, seq_len: int
) -> Unit:
    """Returns what one shape runs for one micro-batch; raises `NotMeasurable`."""
    if precision not in DTYPES:
        raise NotMeasurable(f"precision {precision}")
    dtype = DTYPES[precision]
    tokens = (micro_batch, seq_len)
    if shape.part == "layer" and shape.layer is not None:
        part = layer_part(shape.layer, shape.hidden_size, shard)
        return Unit(part.apply, part.shapes, (*tokens, shape.hidden_size), 0, dtype, chains=True)
    if shape.vocab_size is None:
        raise NotMeasurable(f"a {shape.part} without its size")
    # The vocabulary is padded to a multiple of the tensor degree, as frameworks do.
    rows = -(-shape.vocab_size // shard.tensor_parallel)
    if shape.part == "embedding":
        table = {"tokens": (rows, shape.hidden_size)}
        return Unit(_looked_up, table, tokens, rows, dtype, chains=False)
    weights = {"norm": (shape.hidden_size,), "head": (shape.hidden_size, rows)}
    return Unit(_loss, weights, (*tokens, shape.hidden_size), 0, dtype, chains=False)


def layer_part(layer: Layer, hidden_size: int, shard: Shard) -> LayerPart:
    """Returns a whole layer: its branches with their norms and residual connections."""
    if layer.input_embedding_size:
        raise NotMeasurable("a layer with an input embedding of its own")
    branches = _branches(layer, hidden_size, shard)
    shapes = {
        f"{i}.{name}": shape
        for i, part in enumerate(branches)
        for name, shape in part.shapes.items()
    }
    if layer.num_norms:
        shapes["norm"] = (layer.num_norms, hidden_size)
    if layer.num_norms and layer.norm == "layer":
        shapes["norm.bias"] = (layer.num_norms, hidden_size)
    if layer.num_norms < len(branches):
        return LayerPart(shapes, lambda params, x: _side_by_side(layer, branches, params, x))
    return LayerPart(shapes, lambda params, x: _one_by_one(layer, branches, params, x))


def _branches(layer: Layer, hidden_size: int, shard: Shard) -> list[LayerPart]:
    found: list[LayerPart] = []
    for mixer in (layer.mixer, layer.cross_attention):
        if isinstance(mixer, Attention):
            found.append(attention_part(mixer, hidden_size, shard))
        elif isinstance(mixer, LatentAttention):
            found.append(latent_attention_part(mixer, hidden_size, shard))
        elif mixer is not None:
            raise NotMeasurable(f"a mixer of kind {mixer.kind}")
    if isinstance(layer.feed_forward, DenseMlp):
        found.append(mlp_part(layer.feed_forward, hidden_size, shard))
    elif isinstance(layer.feed_forward, MoeMlp):
        found.append(moe_part(layer.feed_forward, hidden_size, shard))
    if not found:
        raise NotMeasurable("a layer without parts")
    return found


def _one_by_one(layer: Layer, branches: list[LayerPart], params: Params, x: Hidden) -> Hidden:
    """Returns x after each branch in turn; with twice as many norms, outputs have theirs too."""
    after = layer.num_norms >= 2 * len(branches)
    for i, part in enumerate(branches):
        first = 2 * i if after else i
        y = part.apply(_own(params, i), _normed(layer, params, first, x))
        x = x + (_normed(layer, params, first + 1, y) if after else y)
    return x


def _side_by_side(layer: Layer, branches: list[LayerPart], params: Params, x: Hidden) -> Hidden:
    """Returns x after branches that read the same input (GPT-J, Falcon, Phi)."""
    read = _normed(layer, params, 0, x) if layer.num_norms else x
    return sum((part.apply(_own(params, i), read) for i, part in enumerate(branches)), x)


def _normed(layer: Layer, params: Params, index: int, x: Hidden) -> Hidden:
    bias = params["norm.bias"][index] if "norm.bias" in params else None
    return norm(layer.norm, x, params["norm"][index], bias)


def _own(params: Params, branch: int) -> dict[str, Any]:
    prefix = f"{branch}."
    return {n.removeprefix(prefix): v for n, v in params.items() if n.startswith(prefix)}


def _looked_up(params: Params, ids: Int[Array, "samples tokens"]) -> Hidden:
    return jnp.take(params["tokens"], ids, axis=0)


def _loss(params: Params, x: Hidden) -> Float[Array, ""]:
    """Returns the mean cross-entropy against tokens that follow from their places."""
    logits = linear(params, "head", norm("rms", x, params["norm"])).astype(jnp.float32)
    places = jnp.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2])
    targets = places % logits.shape[-1]
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def _values(shape: tuple[int, ...], dtype: str, scale: float) -> Made:
    """Returns values around 0 that differ from place to place, without a random generator."""
    size = 1
    for length in shape:
        size *= length
    steps = jnp.arange(size, dtype=jnp.float32) * VALUE_STEP
    return (scale * jnp.sin(steps)).astype(dtype).reshape(shape)
