"""Decoder-only families with their own layouts: GPT-2 and relatives, OPT, BLOOM, Falcon, Phi."""

from __future__ import annotations

from dataclasses import replace

from apss_jax.importers.decoders import ModelFrom, Traits, decoder, heads_and_size, mlp
from apss_jax.importers.fields import HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, Fields, changed
from apss_jax.schema.layers import Attention, DenseMlp
from apss_jax.schema.model import Embedding, Model
from apss_jax.schema.weights import MAX_LAYERS

BIASED = Traits(
    qkv_bias=True, output_bias=True, mlp_bias=True, gated=False, norm="layer", tied=True
)
MPT_FFN = 4


def _attention(f: Fields, traits: Traits, **changes: object) -> Attention:
    heads, kv_heads, head_dim = heads_and_size(f, traits, f.size(*HIDDEN))
    base = Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=bool(traits.qkv_bias),
        output_bias=bool(traits.output_bias),
    )
    return changed(base, **changes)


def _four_times(f: Fields, traits: Traits) -> DenseMlp:
    width = f.size(*INTERMEDIATE, default=4 * f.size(*HIDDEN))
    return DenseMlp(intermediate_size=width, gated=traits.gated, bias=bool(traits.mlp_bias))


def _plain(f: Fields, traits: Traits, positions: int = 0, **changes: object) -> Model:
    mixer, dense = _attention(f, traits, **changes), _four_times(f, traits)
    return decoder(
        f,
        traits,
        mixer_of=lambda _: mixer,
        feed_forward_of=lambda _: dense,
        num_positions=positions,
    )


def gpt2(f: Fields) -> Model:
    """Returns a GPT-2: learned positions, biases everywhere, a tied head."""
    _refuse(f, "add_cross_attention")
    return _plain(
        f, BIASED, positions=f.size("n_positions", "max_position_embeddings", default=1024)
    )


def gpt_bigcode(f: Fields) -> Model:
    """Returns a GPT-2 with one key/value head unless the config says otherwise (StarCoder)."""
    _refuse(f, "add_cross_attention")
    changes = {"num_kv_heads": 1} if f.flag("multi_query", True) else {}
    positions = f.size("n_positions", "max_position_embeddings", default=1024)
    return _plain(f, BIASED, positions=positions, **changes)


def gpt_neo(f: Fields) -> Model:
    """Returns a GPT-Neo: no biases on queries, keys and values; local and global layers."""
    traits = replace(BIASED, qkv_bias=False)
    window = f.size("window_size", default=256)
    kinds = {
        "global": _attention(f, traits),
        "local": _attention(f, traits, window_tokens=window),
    }
    order = _neo_order(f)
    dense = _four_times(f, traits)
    return decoder(
        f,
        traits,
        mixer_of=lambda index: kinds[order[index % len(order)]],
        feed_forward_of=lambda _: dense,
        num_positions=f.size("max_position_embeddings", default=2048),
    )


def _neo_order(f: Fields) -> list[str]:
    groups = f.data.get("attention_types") or [[["global", "local"], 1]]
    f.seen.add("attention_types")
    try:
        order = [k for kinds, times in groups for _ in range(min(times, MAX_LAYERS)) for k in kinds]
    except (TypeError, ValueError):
        order = []
    if not order or not all(kind in ("global", "local") for kind in order):
        raise f.wrong("attention_types", 'must look like [[["global", "local"], 12]]', "Correct it")
    return order


def gpt_neox(f: Fields) -> Model:
    """Returns a GPT-NeoX (Pythia): rotary positions, biases, an untied head."""
    biased = f.flag("attention_bias", True)
    return _plain(f, replace(BIASED, qkv_bias=biased, output_bias=biased, tied=False))


def gptj(f: Fields) -> Model:
    """Returns a GPT-J (CodeGen): one norm, unbiased attention, a biased untied head."""
    traits = replace(
        BIASED, qkv_bias=False, output_bias=False, num_norms=1, tied=False, head_bias=True
    )
    return _plain(f, traits)


def bloom(f: Fields) -> Model:
    """Returns a BLOOM: ALiBi, a norm on the embeddings, a tied head."""
    model = _plain(f, BIASED)
    return _with_embedding(model, norm="layer")


def mpt(f: Fields) -> Model:
    """Returns an MPT: ALiBi and no biases at all."""
    attention = f.section("attn_config")
    if attention is not None and not attention.flag("alibi", True):
        raise attention.wrong("alibi", "must be true for mpt", "Describe it as a model file")
    if attention is not None and attention.flag("qk_ln", False):
        raise attention.wrong("qk_ln", "is not known for mpt", "Remove it if it is false")
    if not f.flag("no_bias", True):
        raise f.wrong("no_bias", "must be true for mpt", "Describe it as a model file")
    factor = f.size("expansion_ratio", default=MPT_FFN)
    dense = DenseMlp(intermediate_size=factor * f.size(*HIDDEN), gated=False)
    traits = Traits(norm="layer_no_bias", gated=False, tied=True)
    mixer = _attention(f, traits)
    return decoder(f, traits, mixer_of=lambda _: mixer, feed_forward_of=lambda _: dense)


def opt(f: Fields) -> Model:
    """Returns an OPT: learned positions with two more rows, maybe a narrower embedding."""
    biased = f.flag("enable_bias", True)
    first = f.flag("do_layer_norm_before", True)
    affine = f.flag("layer_norm_elementwise_affine", True)
    traits = replace(
        BIASED,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=biased,
        num_norms=2 if affine else 0,
        final_norm=affine and first and not f.flag("_remove_final_layer_norm", False),
    )
    rows = f.size("max_position_embeddings", default=2048) + 2  # the first two are padding
    model = _plain(f, traits, positions=rows)
    width = f.size("word_embed_proj_dim", default=f.size(*HIDDEN))
    if width == f.size(*HIDDEN):
        return model
    return changed(_with_embedding(model, width=width), head=changed(model.head, width=width))


def falcon(f: Fields) -> Model:
    """Returns a Falcon: multi-query, parallel attention, or the grouped layout of the 40B."""
    biased, grouped = f.flag("bias", False), f.flag("new_decoder_architecture", False)
    parallel, multi_query = f.flag("parallel_attn", True), f.flag("multi_query", True)
    norms_given = f.optional_size("num_ln_in_parallel_attn")
    norms = (norms_given or (2 if grouped else 1)) if parallel else 2
    traits = replace(BIASED, qkv_bias=biased, output_bias=biased, mlp_bias=biased, num_norms=norms)
    heads = f.size(*HEADS)
    kv_heads = f.size(*KV_HEADS, default=heads) if grouped else (1 if multi_query else heads)
    return _plain(f, traits, num_kv_heads=kv_heads)


def phi(f: Fields) -> Model:
    """Returns a Phi-1 or Phi-2: one norm, attention beside the feed-forward part."""
    _refuse(f, "qk_layernorm")
    traits = replace(BIASED, num_norms=1, tied=False, head_bias=True)
    return _plain(f, traits)


def stablelm(f: Fields) -> Model:
    """Returns a StableLM."""
    norms = 1 if f.flag("use_parallel_residual", False) else 2
    traits = Traits(
        qkv_bias=("use_qkv_bias", False),
        norm="layer",
        num_norms=norms,
        width_norm=("qk_layernorm", False),
    )
    return decoder(f, traits)


def qwen(f: Fields) -> Model:
    """Returns a Qwen 1: its `intermediate_size` counts up and gate projection together."""
    traits = Traits(qkv_bias=True, head_dim=f.optional_size("kv_channels"))
    both = f.size("intermediate_size")
    if both % 2:
        raise f.wrong("intermediate_size", "must be even for qwen", "Correct it")
    dense = DenseMlp(intermediate_size=both // 2)
    return decoder(f, traits, feed_forward_of=lambda _: dense)


def chatglm(f: Fields) -> Model:
    """Returns a ChatGLM 2, 3 or GLM-4: fused projections, grouped key/value heads by a flag."""
    _refuse(f, "add_bias_linear")
    groups = f.optional_size("multi_query_group_num")
    groups = groups if f.flag("multi_query_attention", False) else None
    biased = f.flag("add_qkv_bias", False)
    traits = Traits(qkv_bias=biased, head_dim=f.optional_size("kv_channels"), kv_heads=groups)
    f = Fields({**f.data, "vocab_size": f.size("padded_vocab_size")}, file=f.file)
    mixer, dense = _attention(f, traits), mlp(f, traits, "ffn_hidden_size")
    return decoder(f, traits, mixer_of=lambda _: mixer, feed_forward_of=lambda _: dense)


def _refuse(f: Fields, flag: str) -> None:
    if f.flag(flag, False):
        kind = f.text("model_type", "this model")
        raise f.wrong(flag, f"cannot be represented for {kind}", "Set it to false if it is unused")


def _with_embedding(model: Model, **changes: object) -> Model:
    embedding = model.embedding or Embedding(vocab_size=1)
    return changed(model, embedding=changed(embedding, **changes))


FAMILIES: dict[str, ModelFrom] = {
    "gpt2": gpt2,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gpt_neox": gpt_neox,
    "gptj": gptj,
    "codegen": gptj,
    "bloom": bloom,
    "mpt": mpt,
    "opt": opt,
    "falcon": falcon,
    "RefinedWeb": falcon,
    "RefinedWebModel": falcon,
    "phi": phi,
    "stablelm": stablelm,
    "qwen": qwen,
    "chatglm": chatglm,
}
