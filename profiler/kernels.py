"""The parts of a layer as JAX functions on one tensor shard: what a layer's time is measured on.

Every part reads the weights that `apss_jax.schema.layers` lists, cut as tensor parallelism cuts
them, and leaves the collectives out: those are measured as links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from apss_jax.schema.layers import Attention, DenseMlp, LatentAttention, MoeMlp, NormKind
from apss_jax.schema.weights import Weight

Params = Mapping[str, Any]
"""Arrays by name of weight."""

Hidden = Float[Array, "samples tokens hidden"]
"""What goes into a part and comes out of it."""

Heads = Float[Array, "samples tokens heads head_values"]
"""Queries."""

KeyHeads = Float[Array, "samples tokens kv_heads head_values"]
"""Keys or values, whose heads several queries share."""

ValueHeads = Float[Array, "samples tokens heads _"]
"""Values that are wider or narrower than the keys of their heads."""

Wide = Float[Array, "... features"]
"""Values of any axes; what is done to them concerns the last one."""

Vector = Float[Array, " features"]
"""One value for each feature, the same everywhere else."""

Product = Float[Array, "... _"]
"""What a product with a weight gives: another width, the other axes as they were."""

Joined = Float[Array, "samples tokens _"]
"""The values of all heads side by side."""

Split = Float[Array, "samples tokens _ head_values"]
"""The values of heads, each on its own."""

PartFn = Callable[[Params, Hidden], Hidden]
"""A part of a layer, applied to its weights and to a micro-batch."""

FlashKernel = Literal["cudnn"]
"""What can be asked to run attention in XLA's place."""

NORM_EPSILON = 1e-6
ROTARY_BASE = 10_000.0


class NotMeasurable(Exception):
    """A kind of layer or a setting that the profiler cannot run; says which and why."""


@dataclass(frozen=True)
class Shard:
    """How a part is cut and run."""

    tensor_parallel: int = 1
    attention_kernel: FlashKernel | None = None  # None: XLA's own
    recomputes_scores: bool = False


@dataclass(frozen=True)
class LayerPart:
    """A function and the shapes of the weights that it needs."""

    shapes: Mapping[str, tuple[int, ...]]
    apply: PartFn


def shard_shape(weight: Weight, tensor_parallel: int) -> tuple[int, ...]:
    """Returns the shape of a weight on one tensor rank; vectors have one axis, copies the first."""
    rows, columns = weight.in_features, weight.out_features
    if weight.shard == "column":
        columns = _divided(weight, columns, tensor_parallel)
    elif weight.shard == "row":
        rows = _divided(weight, rows, tensor_parallel)
    shape = (columns,) if weight.in_features == 1 else (rows, columns)
    return (weight.copies, *shape) if weight.copies > 1 or weight.is_expert else shape


def _divided(weight: Weight, size: int, tensor_parallel: int) -> int:
    if size % tensor_parallel:
        raise NotMeasurable(f"{weight.name} of {size} cannot be cut into {tensor_parallel} parts")
    return size // tensor_parallel


def shapes_of(weights: list[Weight], shard: Shard) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of weights on one tensor rank, by name."""
    return {weight.name: shard_shape(weight, shard.tensor_parallel) for weight in weights}


def norm(kind: NormKind, x: Wide, scale: Vector, bias: Vector | None = None) -> Wide:
    """Returns the normalised values, computed in FP32 and returned as they came."""
    wide = x.astype(jnp.float32)
    if kind != "rms":
        wide = wide - wide.mean(axis=-1, keepdims=True)
    size = jnp.square(wide).mean(axis=-1, keepdims=True)
    scaled = wide * jax.lax.rsqrt(size + NORM_EPSILON) * _row(scale, wide)
    if bias is not None:
        scaled = scaled + _row(bias, wide)
    return scaled.astype(x.dtype)


def linear(params: Params, name: str, x: Wide) -> Product:
    """Returns a product with a weight, its bias added where it has one."""
    y = x @ params[name]
    bias = params.get(f"{name}.bias")
    return y if bias is None else y + _row(bias, y)


def _row(vector: Vector, like: Wide) -> Wide:
    """Returns a vector with as many axes as another array: none is added by broadcasting."""
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))


def attention_part(mixer: Attention, hidden_size: int, shard: Shard) -> LayerPart:
    """Returns softmax attention; rotary positions where it is causal and has no biases of its own.

    Sinks and relative biases, a few values per head, are left out of the scores.
    """
    heads, kv_heads = mixer.tensor_divisor
    degree = shard.tensor_parallel
    if heads % degree or kv_heads % degree:
        raise NotMeasurable(f"{heads} heads over {kv_heads} cannot be cut into {degree} parts")
    if mixer.shares_kv:
        raise NotMeasurable("attention that shares keys and values with an earlier layer")

    def apply(params: Params, x: Hidden) -> Hidden:
        query, gate = _queries(mixer, params, x)
        key = _heads(linear(params, "key", x), mixer.head_dim)
        value = key if mixer.value_is_key else _heads(linear(params, "value", x), mixer.head_dim)
        query, key = _head_normed(mixer, params, query, key)
        if mixer.causal and not mixer.relative_buckets:
            query, key = rotated(query), rotated(key)
        mixed = _merged(attended(query, key, value, mixer, shard))
        mixed = mixed if gate is None else mixed * jax.nn.sigmoid(gate)
        return linear(params, "output", mixed)

    return LayerPart(shapes_of(mixer.weights(hidden_size), shard), apply)


def _queries(mixer: Attention, params: Params, x: Hidden) -> tuple[Heads, Joined | None]:
    query, gate = linear(params, "query", x), None
    if mixer.output_gate:
        query, gate = jnp.split(query, 2, axis=-1)
    return _heads(query, mixer.head_dim), gate


def _head_normed(
    mixer: Attention, params: Params, query: Heads, key: KeyHeads
) -> tuple[Heads, KeyHeads]:
    if mixer.head_norm:
        scales = params["head_norm"]
        return norm("rms", query, scales[0]), norm("rms", key, scales[1])
    if mixer.width_norm:
        return (
            _heads(norm("rms", _merged(query), params["query_norm"]), mixer.head_dim),
            _heads(norm("rms", _merged(key), params["key_norm"]), mixer.head_dim),
        )
    return query, key


def attended(query: Heads, key: KeyHeads, value: KeyHeads, mixer: Attention, shard: Shard) -> Heads:
    """Returns the values that each query attends to."""
    window = None if mixer.window_tokens is None else (mixer.window_tokens - 1, 0)

    def scores(query: Heads, key: KeyHeads, value: KeyHeads) -> Heads:
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            is_causal=mixer.causal,
            local_window_size=window,
            implementation=shard.attention_kernel,
        )

    run = jax.checkpoint(scores) if shard.recomputes_scores else scores
    return run(query, key, value)


def latent_attention_part(mixer: LatentAttention, hidden_size: int, shard: Shard) -> LayerPart:
    """Returns multi-head latent attention with its keys and values expanded (arXiv 2405.04434)."""
    if mixer.index_heads:
        raise NotMeasurable("latent attention with an indexer")
    heads = mixer.num_heads // shard.tensor_parallel
    widths = (mixer.nope_head_dim, mixer.rope_head_dim, mixer.value_head_dim)

    def apply(params: Params, x: Hidden) -> Hidden:
        query = _latent_query(mixer, params, x).reshape(*x.shape[:2], heads, -1)
        latent, shared = jnp.split(linear(params, "kv_down", x), [mixer.kv_rank], axis=-1)
        expanded = linear(params, "kv_up", norm("rms", latent, params["kv_norm"]))
        key, value = jnp.split(expanded.reshape(*x.shape[:2], heads, -1), [widths[0]], axis=-1)
        rotary = jnp.broadcast_to(shared[:, :, None, :], (*key.shape[:3], widths[1]))
        mixed = _expanded_scores(query, jnp.concatenate([key, rotary], axis=-1), value, shard)
        return linear(params, "output", _merged(mixed))

    return LayerPart(shapes_of(mixer.weights(hidden_size), shard), apply)


def _latent_query(mixer: LatentAttention, params: Params, x: Hidden) -> Joined:
    if mixer.query_rank is None:
        return linear(params, "query", x)
    down = norm("rms", linear(params, "query_down", x), params["query_norm"])
    return linear(params, "query_up", down)


def _expanded_scores(query: Heads, key: Heads, value: ValueHeads, shard: Shard) -> ValueHeads:
    """Returns causal attention whose values have another width than its keys."""

    def scores(query: Heads, key: Heads, value: ValueHeads) -> ValueHeads:
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
        mask = jnp.tril(jnp.ones(logits.shape[-2:], dtype=bool))[None, None]
        logits = jnp.where(mask, logits / math.sqrt(query.shape[-1]), -jnp.inf)
        weights = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value)

    return (jax.checkpoint(scores) if shard.recomputes_scores else scores)(query, key, value)


def mlp_part(part: DenseMlp, hidden_size: int, shard: Shard, prefix: str = "") -> LayerPart:
    """Returns a feed-forward part; gated ones use SiLU, others GELU."""

    def apply(params: Params, x: Hidden) -> Hidden:
        up = linear(params, f"{prefix}up", x)
        inner = jax.nn.silu(linear(params, f"{prefix}gate", x)) * up if part.gated else gelu(up)
        return linear(params, f"{prefix}down", inner)

    shapes = shapes_of(part.weights(hidden_size), shard)
    return LayerPart({f"{prefix}{name}": shape for name, shape in shapes.items()}, apply)


def moe_part(part: MoeMlp, hidden_size: int, shard: Shard) -> LayerPart:
    """Returns routed experts as one grouped product, with what stands beside them."""
    if part.latent_size or part.expert_bias:
        raise NotMeasurable("experts with a latent width or biases")
    own = ("router", "router.bias", "expert.up", "expert.gate", "expert.down")
    shapes = {n: s for n, s in shapes_of(part.weights(hidden_size), shard).items() if n in own}
    beside = _beside_experts(part, hidden_size, shard)
    for each in beside:
        shapes |= each.shapes

    def apply(params: Params, x: Hidden) -> Hidden:
        mixed = routed(part, params, x.reshape(-1, x.shape[-1])).reshape(x.shape)
        return sum((each.apply(params, x) for each in beside), mixed)

    return LayerPart(shapes, apply)


def _beside_experts(part: MoeMlp, hidden_size: int, shard: Shard) -> list[LayerPart]:
    found = []
    if part.shared_intermediate_size:
        shared = DenseMlp(
            intermediate_size=part.shared_intermediate_size,
            gated=part.gated,
            bias=part.shared_bias,
        )
        found.append(mlp_part(shared, hidden_size, shard, "shared."))
    if part.parallel_mlp is not None:
        found.append(mlp_part(part.parallel_mlp, hidden_size, shard, "parallel."))
    return found


def routed(
    part: MoeMlp, params: Params, x: Float[Array, "tokens hidden"]
) -> Float[Array, "tokens hidden"]:
    """Returns the weighted outputs of each token's experts; no token is dropped."""
    share, expert = jax.lax.top_k(
        jax.nn.softmax(linear(params, "router", x).astype(jnp.float32), axis=-1),
        part.experts_per_token,
    )
    order = jnp.argsort(expert.reshape(-1))
    token = order // part.experts_per_token
    group_sizes = jnp.bincount(expert.reshape(-1), length=part.num_experts)
    y = _experts(part, params, x[token], group_sizes.astype(jnp.int32))
    weighted = y * share.reshape(-1)[order][:, None].astype(y.dtype)
    return jnp.zeros_like(x).at[token].add(weighted)


def _experts(
    part: MoeMlp,
    params: Params,
    x: Float[Array, "tokens hidden"],
    group_sizes: Int[Array, " groups"],
) -> Float[Array, "tokens hidden"]:
    up = jax.lax.ragged_dot(x, params["expert.up"], group_sizes)
    if part.gated:
        inner = jax.nn.silu(jax.lax.ragged_dot(x, params["expert.gate"], group_sizes)) * up
    else:
        inner = gelu(up)
    return jax.lax.ragged_dot(inner, params["expert.down"], group_sizes)


def gelu(x: Wide) -> Wide:
    """Returns GELU in its tanh form."""
    return jax.nn.gelu(x, approximate=True)


def rotated(x: Split) -> Split:
    """Returns queries or keys turned by their position (arXiv 2104.09864)."""
    half = x.shape[-1] // 2
    rate = ROTARY_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * rate[None]
    cos, sin = (f(angle)[None, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin, rest], axis=-1)


def _heads(x: Joined, head_dim: int) -> Float[Array, "samples tokens _ _"]:
    return x.reshape(*x.shape[:2], -1, head_dim)


def _merged(x: Split) -> Joined:
    return x.reshape(*x.shape[:2], -1)
