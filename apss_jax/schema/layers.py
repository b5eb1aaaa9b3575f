"""The parts of a transformer layer, each of which lists its own weights.

A layer is a token mixer (attention, latent attention, ...), an optional cross-attention, and a
feed-forward part. Parameter counts, matrix products and shards are all read off `weights`, so a
new kind of layer is one class here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from apss_jax.schema.document import Part, Tagged
from apss_jax.schema.weights import Count, Size, Weight, matrix, vector

NormKind = Literal["rms", "layer", "layer_no_bias"]


def norm_weights(name: str, kind: NormKind, width: int, copies: int = 1) -> list[Weight]:
    """Returns the vectors of `copies` norms over `width` values."""
    weights = [vector(name, width, copies=copies)]
    if kind == "layer":
        weights.append(vector(f"{name}.bias", width, copies=copies))
    return weights if copies else []


class Attention(Tagged):
    """Softmax attention with grouped key/value heads, global or over a local window."""

    kind: Literal["attention"] = "attention"
    num_heads: Size
    num_kv_heads: Size
    head_dim: Size
    window_tokens: Size | None = None  # None attends to the whole sequence
    causal: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: bool = False  # one norm of head_dim each on queries and keys (Qwen3, Gemma 3)
    width_norm: bool = False  # one norm each over all heads of queries and of keys (OLMo 2, Cohere)
    output_gate: bool = False  # the query projection is twice as wide (Qwen3-Next)
    sinks: bool = False  # one learned logit per head (GPT-OSS)
    value_is_key: bool = False  # no value projection (Gemma 4, global layers)
    shares_kv: bool = False  # keys and values come from an earlier layer (Gemma 4)
    relative_buckets: Count = 0  # a table of biases [buckets, heads] (T5, first layer)

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns the projections and small vectors of this part."""
        query = self.num_heads * self.head_dim * (2 if self.output_gate else 1)
        width = self.num_heads * self.head_dim
        kv = self.num_kv_heads * self.head_dim
        found = matrix("query", hidden_size, query, "column", bias=self.qkv_bias)
        if not self.shares_kv:
            found += matrix("key", hidden_size, kv, "column", bias=self.qkv_bias)
            if not self.value_is_key:
                found += matrix("value", hidden_size, kv, "column", bias=self.qkv_bias)
        found += matrix("output", width, hidden_size, "row", bias=self.output_bias)
        return found + self._small_weights()

    def _small_weights(self) -> list[Weight]:
        found = []
        if self.head_norm:
            found.append(vector("head_norm", self.head_dim, copies=1 if self.shares_kv else 2))
        if self.width_norm:
            found.append(vector("query_norm", self.num_heads * self.head_dim, "column"))
            found.append(vector("key_norm", self.num_kv_heads * self.head_dim, "column"))
        if self.sinks:
            found.append(vector("sinks", self.num_heads, "column"))
        if self.relative_buckets:
            found.append(vector("relative", self.num_heads, "column", copies=self.relative_buckets))
        return found

    @property
    def score_width(self) -> int:
        """Returns heads x head size of the scores, the width that attention FLOPs count."""
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Returns the values of one head's key."""
        return self.head_dim

    @property
    def kv_width(self) -> int:
        """Returns the values per token of keys and values together."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def tensor_divisor(self) -> tuple[int, int]:
        """Returns (heads, key/value heads): what tensor parallelism divides."""
        return self.num_heads, self.num_kv_heads


class LatentAttention(Tagged):
    """Multi-head latent attention: low-rank queries, keys and values (arXiv 2405.04434)."""

    kind: Literal["latent_attention"] = "latent_attention"
    num_heads: Size
    query_rank: Size | None  # None: a full query projection (V2-Lite)
    kv_rank: Size
    nope_head_dim: Size
    rope_head_dim: Count
    value_head_dim: Size
    bias: bool = False
    index_heads: Count = 0  # of the indexer that picks the tokens to attend to (V3.2)
    index_head_dim: Count = 0

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns the down and up projections, their norms, and the indexer's weights."""
        query = self.num_heads * (self.nope_head_dim + self.rope_head_dim)
        found = self._query_weights(hidden_size, query)
        down = self.kv_rank + self.rope_head_dim
        up = self.num_heads * (self.nope_head_dim + self.value_head_dim)
        found += matrix("kv_down", hidden_size, down, "replicated", bias=self.bias)
        found += [vector("kv_norm", self.kv_rank)]
        found += matrix("kv_up", self.kv_rank, up, "column")
        width = self.num_heads * self.value_head_dim
        found += matrix("output", width, hidden_size, "row", bias=self.bias)
        return found + self._index_weights(hidden_size)

    def _index_weights(self, hidden_size: int) -> list[Weight]:
        if not self.index_heads:
            return []
        query = self.index_heads * self.index_head_dim
        found = matrix("index_query", self.query_rank or hidden_size, query, "replicated")
        found += matrix("index_key", hidden_size, self.index_head_dim, "replicated")
        found += [vector("index_norm", self.index_head_dim, copies=2)]
        return found + matrix("index_weight", hidden_size, self.index_heads, "replicated")

    def _query_weights(self, hidden_size: int, query: int) -> list[Weight]:
        if self.query_rank is None:
            return matrix("query", hidden_size, query, "column")
        found = matrix("query_down", hidden_size, self.query_rank, "replicated", bias=self.bias)
        found += [vector("query_norm", self.query_rank)]
        return found + matrix("query_up", self.query_rank, query, "column")

    @property
    def score_width(self) -> int:
        """Returns the mean width of the two attention products, heads x size."""
        per_head = (self.nope_head_dim + self.rope_head_dim + self.value_head_dim) / 2
        return round(self.num_heads * per_head)

    @property
    def key_size(self) -> int:
        """Returns the values of one head's key."""
        return self.nope_head_dim + self.rope_head_dim

    @property
    def kv_width(self) -> int:
        """Returns the values per token of the keys and values that attention reads, expanded."""
        return self.num_heads * (self.nope_head_dim + self.rope_head_dim + self.value_head_dim)

    @property
    def tensor_divisor(self) -> tuple[int, int]:
        """Returns (heads, heads): every head has its own keys."""
        return self.num_heads, self.num_heads


class LinearAttention(Tagged):
    """Gated delta net: a recurrent mixer with a short convolution (Qwen3-Next)."""

    kind: Literal["linear_attention"] = "linear_attention"
    num_key_heads: Size
    num_value_heads: Size
    key_head_dim: Size
    value_head_dim: Size
    conv_kernel: Size

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns the input projections, the convolution, the decay vectors and the output."""
        key = self.num_key_heads * self.key_head_dim
        value = self.num_value_heads * self.value_head_dim
        found = matrix("qkvz", hidden_size, 2 * key + 2 * value, "column")
        found += matrix("beta_alpha", hidden_size, 2 * self.num_value_heads, "column")
        found += [vector("conv", 2 * key + value, "column", copies=self.conv_kernel)]
        found += [vector("decay", self.num_value_heads, "column", copies=2)]
        found += [vector("head_norm", self.value_head_dim)]
        return found + matrix("output", value, hidden_size, "row")

    @property
    def tensor_divisor(self) -> tuple[int, int]:
        """Returns (value heads, key heads): what tensor parallelism divides."""
        return self.num_value_heads, self.num_key_heads


class StateSpace(Tagged):
    """Mamba-2 mixer (arXiv 2405.21060)."""

    kind: Literal["state_space"] = "state_space"
    num_heads: Size
    head_dim: Size
    state_size: Size
    num_groups: Size
    conv_kernel: Size
    conv_bias: bool = True
    bias: bool = False

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns the input projection, convolution, per-head vectors, gated norm and output."""
        inner = self.num_heads * self.head_dim
        conv = inner + 2 * self.num_groups * self.state_size
        found = matrix(
            "input", hidden_size, inner + conv + self.num_heads, "column", bias=self.bias
        )
        found += [vector("conv", conv, "column", copies=self.conv_kernel + int(self.conv_bias))]
        found += [vector("heads", self.num_heads, "column", copies=3)]  # A, D and the step bias
        found += [vector("gated_norm", inner, "column")]
        return found + matrix("output", inner, hidden_size, "row", bias=self.bias)

    @property
    def tensor_divisor(self) -> tuple[int, int]:
        """Returns (heads, groups): what tensor parallelism divides."""
        return self.num_heads, self.num_groups


class DenseMlp(Tagged):
    """Feed-forward part: up (and gate) and down projections."""

    kind: Literal["mlp"] = "mlp"
    intermediate_size: Size
    gated: bool = True
    bias: bool = False

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns the projections."""
        found = matrix("up", hidden_size, self.intermediate_size, "column", bias=self.bias)
        if self.gated:
            found += matrix("gate", hidden_size, self.intermediate_size, "column", bias=self.bias)
        return found + matrix("down", self.intermediate_size, hidden_size, "row", bias=self.bias)


class MoeMlp(Tagged):
    """Routed experts, with shared experts and a dense part beside them where the model has them."""

    kind: Literal["moe"] = "moe"
    num_experts: Size
    experts_per_token: Size
    expert_intermediate_size: Size
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False  # includes the load-balancing correction bias of DeepSeek-V3
    router_vectors: Count = 0  # trained vectors of hidden size in the router (Gemma 4)
    router_scales: Count = 0  # trained values per expert beside the router matrix
    shared_intermediate_size: Count = 0  # all shared experts together; 0 means none
    shared_bias: bool = False
    shared_gate: bool = False  # a sigmoid gate of hidden size on the shared expert
    latent_size: Count = 0  # experts work in this width, between two projections
    parallel_mlp: DenseMlp | None = None  # an ordinary feed-forward part beside the experts

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns the router, every expert, and the parts that every token passes."""
        found = matrix("router", hidden_size, self.num_experts, "replicated", bias=self.router_bias)
        if self.router_vectors:
            found.append(vector("router_vectors", hidden_size, copies=self.router_vectors))
        if self.router_scales:
            found.append(vector("router_scales", self.num_experts, copies=self.router_scales))
        found += self._expert_weights(hidden_size)
        found += self._shared_weights(hidden_size)
        return found + (self.parallel_mlp.weights(hidden_size) if self.parallel_mlp else [])

    def _expert_weights(self, hidden_size: int) -> list[Weight]:
        one = DenseMlp(
            intermediate_size=self.expert_intermediate_size, gated=self.gated, bias=self.expert_bias
        )
        share = self.experts_per_token / self.num_experts
        experts = [
            Weight(
                f"expert.{w.name}", w.in_features, w.out_features, w.shard,
                share * w.multiplied_fraction, self.num_experts, is_expert=True,
            )
            for w in one.weights(self.latent_size or hidden_size)
        ]  # fmt: skip
        if not self.latent_size:
            return experts
        down = matrix("latent_down", hidden_size, self.latent_size, "replicated")
        return [*down, *experts, *matrix("latent_up", self.latent_size, hidden_size, "replicated")]

    def _shared_weights(self, hidden_size: int) -> list[Weight]:
        if not self.shared_intermediate_size:
            return []
        shared = DenseMlp(
            intermediate_size=self.shared_intermediate_size,
            gated=self.gated,
            bias=self.shared_bias,
        )
        gate = matrix("shared_gate", hidden_size, 1, "replicated") if self.shared_gate else []
        return shared.weights(hidden_size) + gate


Mixer = Annotated[
    Attention | LatentAttention | LinearAttention | StateSpace, Field(discriminator="kind")
]
FeedForward = Annotated[DenseMlp | MoeMlp, Field(discriminator="kind")]


class Layer(Part):
    """One layer: norms, a token mixer, an optional cross-attention, a feed-forward part."""

    mixer: Mixer | None = None
    cross_attention: Attention | None = None
    feed_forward: FeedForward | None = None
    norm: NormKind = "rms"
    num_norms: Count = 2  # of hidden size; 4 where inputs and outputs are normalised
    input_embedding_size: Count = 0  # per-layer input: gate and projection (Gemma 4)

    def weights(self, hidden_size: int) -> list[Weight]:
        """Returns every weight of the layer."""
        found = norm_weights("norm", self.norm, hidden_size, self.num_norms)
        for part in (self.mixer, self.cross_attention, self.feed_forward):
            found += part.weights(hidden_size) if part else []
        if self.input_embedding_size:
            found += matrix("input_gate", hidden_size, self.input_embedding_size, "replicated")
            found += matrix(
                "input_projection", self.input_embedding_size, hidden_size, "replicated"
            )
        return found
