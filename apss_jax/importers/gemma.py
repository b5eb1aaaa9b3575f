"""Gemma 3 and 4: local and global layers, per-layer inputs, vision towers."""

from __future__ import annotations

from dataclasses import replace

from apss_jax.importers.decoders import DENSE, ModelFrom, assemble, decoder, layer_types, setting
from apss_jax.importers.experts import num_layers, routed
from apss_jax.importers.fields import HIDDEN, Fields, changed
from apss_jax.importers.towers import described, gemma4_audio, gemma4_vision, siglip, with_tower
from apss_jax.schema.layers import Attention, DenseMlp, FeedForward, Layer
from apss_jax.schema.model import Model

GEMMA3 = replace(DENSE["gemma2"], head_norm=True, window_period=6)
GEMMA4 = GEMMA3

# What Gemma3TextConfig and Gemma4TextConfig assume.
GEMMA3_TEXT = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA4_TEXT = {
    "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 512,
    "hidden_size_per_layer_input": 256, "global_head_dim": 512, "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA4_AUDIO = {
    "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5,
    "output_proj_dims": 1536, "subsampling_conv_channels": [128, 32],
}  # fmt: skip
SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "image_size": 896, "patch_size": 14,
}  # fmt: skip


def gemma3_text(f: Fields) -> Model:
    """Returns the language model of Gemma 3."""
    return decoder(f.filled(GEMMA3_TEXT), GEMMA3)


def gemma3(f: Fields) -> Model:
    """Returns a Gemma 3, with its vision tower when it has one."""
    text = _text(f, GEMMA3_TEXT)
    model = decoder(text, GEMMA3)
    vision = f.section("vision_config")
    if vision is None:
        return model
    tokens = f.count("mm_tokens_per_image", default=256)
    return with_tower(model, siglip(vision.filled(SIGLIP), text.size(*HIDDEN), tokens))


def gemma4(f: Fields) -> Model:
    """Returns a Gemma 4, with its vision and audio towers when it has them."""
    text = _text(f, GEMMA4_TEXT)
    model = gemma4_text(text)
    audio = f.section("audio_config")
    if audio is not None:
        model = with_tower(model, gemma4_audio(audio.filled(GEMMA4_AUDIO), text.size(*HIDDEN)))
    vision = f.section("vision_config")
    if vision is None or not described(vision):
        return model
    return with_tower(model, gemma4_vision(vision, text.size(*HIDDEN)))


def _text(f: Fields, defaults: dict[str, int]) -> Fields:
    section = f.section("text_config")
    if section is None:
        raise f.wrong("text_config", "is missing", "Add the language model's fields")
    return section.filled(defaults)


def gemma4_text(f: Fields) -> Model:
    """Returns the language model of Gemma 4."""
    f = f.filled(GEMMA4_TEXT)
    count = num_layers(f)
    kinds = list(layer_types(f, count) or _five_to_one(count))
    kinds[-1] = "full_attention"  # whatever the config lists
    shared_from = count - min(f.count("num_kv_shared_layers"), count)
    layers = [_gemma4_layer(f, i, kind, i >= shared_from) for i, kind in enumerate(kinds)]
    model = assemble(f, GEMMA4, layers)
    width = f.count("hidden_size_per_layer_input")
    rows = f.size("vocab_size_per_layer_input", default=f.size("vocab_size"))
    if not width or model.embedding is None:
        return model
    embedding = changed(model.embedding, per_layer_size=width, per_layer_vocab_size=rows)
    return changed(model, embedding=embedding)


def _five_to_one(count: int) -> list[str]:
    return ["sliding_attention" if (i + 1) % 6 else "full_attention" for i in range(count)]


def _gemma4_layer(f: Fields, index: int, kind: str, shares_kv: bool) -> Layer:
    moe = f.flag("enable_moe_block", False)
    per_layer = f.count("hidden_size_per_layer_input")
    return Layer(
        mixer=_gemma4_attention(f, index, kind == "full_attention", shares_kv),
        feed_forward=_gemma4_feed_forward(f, moe, shares_kv),
        num_norms=4 + (3 if moe else 0) + (1 if per_layer else 0),
        input_embedding_size=per_layer,
    )


def _gemma4_attention(f: Fields, index: int, is_global: bool, shares_kv: bool) -> Attention:
    same = f.flag("attention_k_eq_v", False) and is_global
    kv_heads = f.size("num_key_value_heads")
    if same:
        kv_heads = f.size("num_global_key_value_heads", default=kv_heads)
    head_dim = f.size("global_head_dim" if is_global else "head_dim")
    listed = f.section("per_layer_config")  # how newer files say what differs by layer
    own = listed.section(str(index)) if listed else None
    if own:
        kv_heads = own.size("num_key_value_heads", default=kv_heads)
        head_dim = own.size("head_dim", default=head_dim)
    bias = setting(f, ("attention_bias", False))
    return Attention(
        num_heads=f.size("num_attention_heads"),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        window_tokens=None if is_global else f.optional_size("sliding_window"),
        qkv_bias=bias,
        output_bias=bias,
        head_norm=True,
        value_is_key=same,
        shares_kv=shares_kv,
    )


def _gemma4_feed_forward(f: Fields, moe: bool, shares_kv: bool) -> FeedForward:
    wide = 2 if shares_kv and f.flag("use_double_wide_mlp", False) else 1
    dense = DenseMlp(intermediate_size=wide * f.size("intermediate_size"))
    if not moe:
        return dense
    width = f.size("moe_intermediate_size", "expert_intermediate_size")
    return routed(f, width, router_vectors=1, router_scales=1, parallel_mlp=dense)


FAMILIES: dict[str, ModelFrom] = {
    "gemma3": gemma3,
    "gemma3_text": gemma3_text,
    "gemma4": gemma4,
    "gemma4_text": gemma4_text,
}
