"""Families that mix attention with recurrent layers: Nemotron-H and Qwen3-Next."""

from __future__ import annotations

from apss_jax.importers.decoders import (
    ATTENTION_BIAS,
    MLP_BIAS,
    FeedForwardOf,
    ModelFrom,
    Traits,
    assemble,
    attention,
    decoder,
    layer_types,
    setting,
)
from apss_jax.importers.experts import (
    beside_dense,
    by_step,
    granite_experts,
    num_layers,
    routed,
    with_mtp,
)
from apss_jax.importers.fields import HIDDEN, LAYERS, SHARED_EXPERTS, Fields, changed
from apss_jax.schema.layers import (
    Attention,
    DenseMlp,
    FeedForward,
    Layer,
    LinearAttention,
    Mixer,
    StateSpace,
)
from apss_jax.schema.model import Model
from apss_jax.schema.weights import MAX_LAYERS

QWEN3_NEXT = Traits(
    qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, head_norm=True, head_dim=256
)
NEMOTRON_H = Traits(qkv_bias=False, output_bias=False, head_dim=128)
GRANITE = Traits(qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS)
GRANITE_KINDS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}
PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NEMOTRON_WIDTH = 21504  # NemotronHConfig, which is the 8B model


def qwen3_next(f: Fields) -> Model:
    """Returns a Qwen3-Next: a gated delta net in all but every n-th layer, experts after each."""
    shared = f.count("shared_expert_intermediate_size")
    moe = routed(
        f,
        f.size("moe_intermediate_size"),
        shared_intermediate_size=shared,
        shared_gate=shared > 0,
    )
    return _gated_hybrid(f, beside_dense(f, QWEN3_NEXT, moe, by_step(f)))


def qwen3_5_text(f: Fields) -> Model:
    """Returns the dense language model of Qwen3.5."""
    return _gated_hybrid(f, None)


def _gated_hybrid(f: Fields, feed_forward_of: FeedForwardOf | None) -> Model:
    count = num_layers(f)
    kinds = layer_types(f, count, ("full_attention", "linear_attention")) or _every_nth(f, count)
    full = attention(f, QWEN3_NEXT, f.size(*HIDDEN))
    mixers: dict[str, Mixer] = {
        "full_attention": changed(full, output_gate=True),
        "linear_attention": _delta_net(f),
    }
    model = decoder(
        f, QWEN3_NEXT, mixer_of=lambda i: mixers[kinds[i]], feed_forward_of=feed_forward_of
    )
    return with_mtp(f, model)


def _every_nth(f: Fields, count: int) -> tuple[str, ...]:
    period = f.size("full_attention_interval", default=4)
    return tuple("linear_attention" if (i + 1) % period else "full_attention" for i in range(count))


def _delta_net(f: Fields) -> LinearAttention:
    return LinearAttention(
        num_key_heads=f.size("linear_num_key_heads", default=16),
        num_value_heads=f.size("linear_num_value_heads", default=32),
        key_head_dim=f.size("linear_key_head_dim", default=128),
        value_head_dim=f.size("linear_value_head_dim", default=128),
        conv_kernel=f.size("linear_conv_kernel_dim", default=4),
    )


def nemotron_h(f: Fields) -> Model:
    """Returns a Nemotron-H: one norm and one part per layer, in the order that a string gives."""
    kinds = _nemotron_kinds(f)
    parts = {kind: _nemotron_layer(f, kind) for kind in dict.fromkeys(kinds)}
    return assemble(f, NEMOTRON_H, [parts[kind] for kind in kinds])


def _nemotron_kinds(f: Fields) -> list[str]:
    listed = f.texts("layers_block_type")
    if listed is None:
        pattern = f.text("hybrid_override_pattern")
        if not pattern:
            raise f.wrong("hybrid_override_pattern", "is missing", "Add it, one letter per layer")
        listed = tuple(PATTERN.get(letter, letter) for letter in pattern)
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [names.get(kind, kind) for kind in listed]
    if len(kinds) > MAX_LAYERS:
        raise f.wrong("hybrid_override_pattern", f"is longer than {MAX_LAYERS}", "Shorten it")
    unknown = sorted(set(kinds) - set(PATTERN.values()))
    if unknown:
        rule = f"has {unknown[0]!r}, which is no kind of layer"
        raise f.wrong("hybrid_override_pattern", rule, f"Use {' '.join(PATTERN)}")
    count = f.optional_size(*LAYERS)
    if count is not None and count != len(kinds):
        rule = f"must be {len(kinds)}, the length of the layer pattern"
        raise f.wrong(LAYERS[0], rule, "Correct one of the two")
    return kinds


def _nemotron_layer(f: Fields, kind: str) -> Layer:
    mixer: Mixer | None = None
    feed_forward: FeedForward | None = None
    if kind == "mamba":
        mixer = _state_space(f)
    elif kind == "attention":
        mixer = _nemotron_attention(f)
    elif kind == "mlp":
        feed_forward = _nemotron_mlp(f)
    else:
        feed_forward = _nemotron_experts(f)
    return Layer(mixer=mixer, feed_forward=feed_forward, num_norms=1)


def _state_space(f: Fields) -> StateSpace:
    return StateSpace(
        num_heads=f.size("mamba_num_heads"),
        head_dim=f.size("mamba_head_dim"),
        state_size=f.size("ssm_state_size"),
        num_groups=f.size("n_groups", "mamba_n_groups"),
        conv_kernel=f.size("conv_kernel", "mamba_d_conv"),
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False),
    )


def _nemotron_attention(f: Fields) -> Attention:
    heads = f.size("num_attention_heads")
    return Attention(
        num_heads=heads,
        num_kv_heads=f.size("num_key_value_heads", default=heads),
        head_dim=f.size("head_dim", "attention_head_dim", default=128),
    )


def _nemotron_mlp(f: Fields) -> DenseMlp:
    if not f.has("intermediate_size"):
        f.note(f"intermediate_size: the family's default, {NEMOTRON_WIDTH}")
    width = f.size("intermediate_size", default=NEMOTRON_WIDTH)
    return DenseMlp(intermediate_size=width, gated=False, bias=setting(f, MLP_BIAS))


def _nemotron_experts(f: Fields) -> FeedForward:
    f.count(*SHARED_EXPERTS)  # the width below is that of all shared experts together
    return routed(
        f,
        f.size("moe_intermediate_size"),
        gated=False,
        router_bias=True,
        shared_bias=setting(f, MLP_BIAS),
        shared_intermediate_size=f.size("moe_shared_expert_intermediate_size"),
        latent_size=f.count("moe_latent_size"),
    )


def granite_hybrid(f: Fields) -> Model:
    """Returns a Granite 4: Mamba or attention in each layer, experts and a shared part after it."""
    hidden, count = f.size(*HIDDEN), num_layers(f)
    kinds = layer_types(f, count, tuple(GRANITE_KINDS)) or ("mamba",) * count
    mixers: dict[str, Mixer] = {"attention": attention(f, GRANITE, hidden)}
    if any(GRANITE_KINDS[kind] == "mamba" for kind in kinds):
        mixers["mamba"] = _granite_state_space(f)
    feed_forward = granite_experts(f)
    return decoder(
        f,
        GRANITE,
        mixer_of=lambda i: mixers[GRANITE_KINDS[kinds[i]]],
        feed_forward_of=lambda _: feed_forward,
    )


def _granite_state_space(f: Fields) -> StateSpace:
    f.count("mamba_expand")  # heads times head size says the same
    return StateSpace(
        num_heads=f.size("mamba_n_heads"),
        head_dim=f.size("mamba_d_head"),
        state_size=f.size("mamba_d_state"),
        num_groups=f.size("mamba_n_groups", default=1),
        conv_kernel=f.size("mamba_d_conv"),
        conv_bias=f.flag("mamba_conv_bias", True),
        bias=f.flag("mamba_proj_bias", False),
    )


FAMILIES: dict[str, ModelFrom] = {
    "granitemoehybrid": granite_hybrid,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_5_text,
    "qwen3_5_moe_text": qwen3_next,
    "nemotron_h": nemotron_h,
}
