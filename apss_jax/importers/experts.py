"""Decoder-only families with routed experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from apss_jax.importers.decoders import (
    ATTENTION_BIAS,
    DENSE,
    FeedForwardOf,
    ModelFrom,
    Traits,
    decoder,
    mlp,
)
from apss_jax.importers.fields import (
    EXPERTS,
    INTERMEDIATE,
    LAYERS,
    SHARED_EXPERTS,
    TOP_K,
    Fields,
    changed,
)
from apss_jax.importers.prediction import with_predictions
from apss_jax.schema.layers import DenseMlp, FeedForward, MoeMlp
from apss_jax.schema.model import Model
from apss_jax.schema.weights import MAX_LAYERS

LLAMA_MOE = Traits(qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS)


def routed(f: Fields, width: int, **extra: object) -> MoeMlp:
    """Returns routed experts of one width; a config that does not say how many is refused."""
    num_experts = f.optional_size(*EXPERTS)
    if num_experts is None:
        named = ", ".join(key for key in f.data if "expert" in key or "moe" in key) or "nothing"
        rule = f"is missing: the config names experts ({named}) but not how many"
        raise f.wrong(EXPERTS[0], rule, f"Give one of {', '.join(EXPERTS)}")
    chosen = f.size(*TOP_K)
    if chosen > num_experts:
        raise f.wrong(TOP_K[0], f"must be at most the {num_experts} experts", "Correct it")
    base = MoeMlp(num_experts=num_experts, experts_per_token=chosen, expert_intermediate_size=width)
    return changed(base, **extra)


def beside_dense(
    f: Fields, traits: Traits, moe: MoeMlp, is_sparse: Sequence[bool]
) -> FeedForwardOf:
    """Returns experts where `is_sparse` says so and the dense part elsewhere."""
    if all(is_sparse):
        return lambda _: moe
    dense = mlp(f, traits)
    return lambda index: moe if is_sparse[index] else dense


def num_layers(f: Fields) -> int:
    """Returns how many layers there are."""
    return f.size(*LAYERS, most=MAX_LAYERS)


def after_first_dense(f: Fields) -> list[bool]:
    """Returns which layers have experts: all but the first few, or as listed."""
    kinds = f.texts("mlp_layer_types")
    if kinds is not None and len(kinds) == num_layers(f):
        return [kind == "sparse" for kind in kinds]
    first, period = f.count("first_k_dense_replace"), f.size("moe_layer_freq", default=1)
    return [i >= first and i % period == 0 for i in range(num_layers(f))]


def by_step(f: Fields) -> list[bool]:
    """Returns which layers have experts: every n-th, but for those listed as dense."""
    step, dense = f.size("decoder_sparse_step", default=1), f.counts("mlp_only_layers") or ()
    return [i not in dense and (i + 1) % step == 0 for i in range(num_layers(f))]


def all_experts(traits: Traits, **extra: object) -> ModelFrom:
    """Returns the importer of a family whose `intermediate_size` is that of an expert."""

    def build(f: Fields) -> Model:
        moe = routed(f, f.size(*INTERMEDIATE), **extra)
        return decoder(f, traits, feed_forward_of=lambda _: moe)

    return build


def qwen_moe(traits: Traits) -> ModelFrom:
    """Returns the importer of Qwen MoE: sparse by step, maybe a gated shared expert."""

    def build(f: Fields) -> Model:
        shared = f.count("shared_expert_intermediate_size")
        extra = {"shared_intermediate_size": shared, "shared_gate": shared > 0}
        moe = routed(f, f.size("moe_intermediate_size"), **extra)
        return decoder(f, traits, feed_forward_of=beside_dense(f, traits, moe, by_step(f)))

    return build


def shared_beside(f: Fields, width: int, **extra: object) -> MoeMlp:
    """Returns routed experts with `n_shared_experts` of the same width that every token passes."""
    shared = f.count(*SHARED_EXPERTS) * width
    return routed(f, width, shared_intermediate_size=shared, **extra)


def first_dense(traits: Traits, *, router_bias: bool) -> ModelFrom:
    """Returns the importer of a family with dense layers first, then experts and shared ones."""

    def build(f: Fields) -> Model:
        moe = shared_beside(f, f.size("moe_intermediate_size"), router_bias=router_bias)
        return decoder(
            f, traits, feed_forward_of=beside_dense(f, traits, moe, after_first_dense(f))
        )

    return build


def glm4_moe(f: Fields) -> Model:
    """Returns a GLM-4.5 or 4.6; its prediction layer is counted apart."""
    return with_mtp(f, first_dense(GLM4_MOE, router_bias=True)(f))


def with_mtp(f: Fields, model: Model) -> Model:
    """Returns the model with its layers of multi-token prediction."""
    names = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
    return with_predictions(model, f.count(*names))


def granite_experts(f: Fields) -> FeedForward:
    """Returns Granite's experts with a shared part, or that part alone when there are none."""
    shared = f.count("shared_intermediate_size")
    if not f.count(*EXPERTS):
        f.count(*TOP_K)
        return DenseMlp(intermediate_size=f.size("shared_intermediate_size"))
    return routed(f, f.size(*INTERMEDIATE), shared_intermediate_size=shared)


def granite_shared(f: Fields) -> Model:
    """Returns a Granite MoE with a shared expert."""
    feed_forward = granite_experts(f)
    return decoder(f, LLAMA_MOE, feed_forward_of=lambda _: feed_forward)


def llama4_text(f: Fields) -> Model:
    """Returns the text part of Llama 4: a shared expert of the experts' width, implied."""
    f = f.filled(LLAMA4_TEXT)
    width = f.size("intermediate_size")
    moe = routed(f, width, shared_intermediate_size=width)
    step = f.size("interleave_moe_layer_step", default=1)
    listed = f.counts("moe_layers")
    is_sparse = [
        i in listed if listed is not None else (i + 1) % step == 0 for i in range(num_layers(f))
    ]
    dense = moe if all(is_sparse) else mlp(f, LLAMA4, "intermediate_size_mlp")
    return decoder(f, LLAMA4, feed_forward_of=lambda i: moe if is_sparse[i] else dense)


LLAMA4 = replace(LLAMA_MOE, window_period=4, window_field="attention_chunk_size")
LLAMA4_TEXT = {
    "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
}  # fmt: skip
GPT_OSS = Traits(
    qkv_bias=("attention_bias", True),
    output_bias=("attention_bias", True),
    head_dim=64,
    sinks=True,
    window_period=2,
)
GLM4_MOE = Traits(qkv_bias=ATTENTION_BIAS, head_norm=("use_qk_norm", False))

FAMILIES: dict[str, ModelFrom] = {
    "mixtral": all_experts(Traits()),
    "qwen2_moe": qwen_moe(replace(DENSE["qwen2"], qkv_bias=("qkv_bias", True))),
    "qwen3_moe": qwen_moe(replace(DENSE["qwen3"], head_dim=None)),
    "gpt_oss": all_experts(GPT_OSS, expert_bias=True, router_bias=True),
    "olmoe": all_experts(DENSE["olmo2"]),
    "flex_olmo": all_experts(DENSE["olmo2"]),
    "minimax_m2": all_experts(Traits(width_norm=True), router_bias=True),
    "phimoe": all_experts(
        replace(LLAMA_MOE, norm="layer", head_bias=("lm_head_bias", False))
    ),
    "granitemoe": all_experts(LLAMA_MOE),
    "granitemoeshared": granite_shared,
    "glm4_moe": glm4_moe,
    "dots1": first_dense(replace(LLAMA_MOE, head_norm=True), router_bias=True),
    "deepseek": first_dense(LLAMA_MOE, router_bias=False),
    "llama4_text": llama4_text,
}  # fmt: skip
