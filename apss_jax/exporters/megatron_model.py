"""A model as arguments of Megatron's pretrain_gpt.py, where it is one that they can describe."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from apss_jax.importers.megatron_model import VOCAB_MULTIPLE, padded_vocab
from apss_jax.schema.layers import Attention, DenseMlp, LatentAttention, Layer, MoeMlp
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Plan

Flag = tuple[str, ...]
"""A flag and its values, each one word."""

OWN = "The model's own arguments are not written:"


def model_flags(model: Model | None, plan: Plan) -> tuple[list[Flag], list[str]]:
    """Returns the model's flags and what to know about them; no flags where none would say it."""
    if model is None:
        return [], [f"{OWN} the model is not at hand."]
    why = _not_a_gpt(model)
    if why is not None:
        return [], [f"{OWN} {why}."]
    flags = [*_size_flags(model, plan), *_layer_flags(model), *_end_flags(model)]
    return flags, [*_notes(model, plan)]


def _not_a_gpt(model: Model) -> str | None:
    """Returns why pretrain_gpt.py cannot describe the model, None where it can."""
    kinds = {type(run.layer.mixer) for run in model.layers}
    widths = {width for run in model.layers if (width := _width(run.layer))}
    crossed = any(run.layer.cross_attention for run in model.layers)
    reasons = {
        "it is a table of layers": model.table is not None or model.embedding is None,
        "it has an encoder": bool(model.encoder_layers) or crossed,
        "it has state-space or linear-attention layers; see --hybrid-layer-pattern": not kinds
        <= {Attention, LatentAttention},
        "its layers have different attention": len(_mixers(model)) > 1,
        "its layers have different feed-forward widths": len(widths) > 1,
        "it has parts beside the decoder": bool(model.towers),
        "it has layers without a feed-forward part": any(
            run.layer.feed_forward is None for run in model.layers
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _mixers(model: Model) -> set[Attention | LatentAttention]:
    """Returns the different mixers, windows apart."""
    found = set()
    for run in model.layers:
        mixer = run.layer.mixer
        if isinstance(mixer, Attention):
            mixer = mixer.model_copy(update={"window_tokens": None})
        if isinstance(mixer, Attention | LatentAttention):
            found.add(mixer)
    return found


def _width(layer: Layer) -> int | None:
    part = layer.feed_forward
    return part.intermediate_size if isinstance(part, DenseMlp) else None


def _size_flags(model: Model, plan: Plan) -> Iterator[Flag]:
    assert model.embedding is not None  # a table is no GPT
    positions = model.embedding.num_positions
    longest = max(positions, plan.seq_len or 0, 0 if positions else model.max_seq_len or 0)
    yield "--hidden-size", str(model.hidden_size)
    yield "--max-position-embeddings", str(longest)
    yield "--position-embedding-type", "learned_absolute" if positions else "rope"
    yield "--vocab-size", str(model.embedding.vocab_size)
    yield "--make-vocab-size-divisible-by", str(VOCAB_MULTIPLE)


def _layer_flags(model: Model) -> Iterator[Flag]:
    layer = model.layers[-1].layer
    if layer.norm == "rms":
        yield "--normalization", "RMSNorm"
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        yield from _latent_flags(mixer)
    elif isinstance(mixer, Attention):
        yield from _attention_flags(mixer)
    yield from _bias_flags(layer)
    yield from _feed_forward_flags(model)


def _attention_flags(mixer: Attention) -> Iterator[Flag]:
    yield "--num-attention-heads", str(mixer.num_heads)
    yield "--kv-channels", str(mixer.head_dim)
    if mixer.num_kv_heads != mixer.num_heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", str(mixer.num_kv_heads)
    if mixer.head_norm:
        yield ("--qk-layernorm",)


def _latent_flags(mixer: LatentAttention) -> Iterator[Flag]:
    yield ("--multi-latent-attention",)
    yield "--num-attention-heads", str(mixer.num_heads)
    if mixer.query_rank is not None:
        yield "--q-lora-rank", str(mixer.query_rank)
    yield "--kv-lora-rank", str(mixer.kv_rank)
    yield "--qk-head-dim", str(mixer.nope_head_dim)
    yield "--qk-pos-emb-head-dim", str(mixer.rope_head_dim)
    yield "--v-head-dim", str(mixer.value_head_dim)


def _bias_flags(layer: Layer) -> Iterator[Flag]:
    mixer = layer.mixer
    if isinstance(mixer, Attention) and mixer.output_bias:
        return
    yield ("--disable-bias-linear",)
    if isinstance(mixer, Attention) and mixer.qkv_bias:
        yield ("--add-qkv-bias",)


def _feed_forward_flags(model: Model) -> Iterator[Flag]:
    widths = [width for run in model.layers if (width := _width(run.layer))]
    routed = [part for run in model.layers if isinstance(part := run.layer.feed_forward, MoeMlp)]
    width = widths[0] if widths else routed[0].expert_intermediate_size
    yield "--ffn-hidden-size", str(width)
    parts = [run.layer.feed_forward for run in model.layers]
    if any(getattr(part, "gated", False) for part in parts):
        yield ("--swiglu",)
    if routed:
        yield from _expert_flags(routed[0], model)


def _expert_flags(part: MoeMlp, model: Model) -> Iterator[Flag]:
    yield "--num-experts", str(part.num_experts)
    yield "--moe-router-topk", str(part.experts_per_token)
    yield "--moe-ffn-hidden-size", str(part.expert_intermediate_size)
    if part.shared_intermediate_size:
        yield "--moe-shared-expert-intermediate-size", str(part.shared_intermediate_size)
    if part.router_bias:
        yield ("--moe-router-enable-expert-bias",)
    if part.router_bias:  # which Megatron has with these scores alone
        yield "--moe-router-score-function", "sigmoid"
    yield ("--moe-grouped-gemm",)
    yield "--moe-token-dispatcher-type", "alltoall"
    marks = [isinstance(layer.feed_forward, MoeMlp) for layer in model.layer_sequence]
    if not all(marks):
        runs = [(int(mark), len(list(run))) for mark, run in groupby(marks)]
        yield "--moe-layer-freq", f"({'+'.join(f'[{mark}]*{n}' for mark, n in runs)})"


def _end_flags(model: Model) -> Iterator[Flag]:
    if not model.head.tied:
        yield ("--untie-embeddings-and-output-weights",)


def _notes(model: Model, plan: Plan) -> Iterator[str]:
    assert model.embedding is not None
    vocab = model.embedding.vocab_size
    padded = padded_vocab(vocab, VOCAB_MULTIPLE, plan.tensor_parallel)
    if padded != vocab:
        yield f"Megatron pads the vocabulary of {vocab} to {padded} rows."
    if not model.embedding.num_positions:
        yield "Positions are taken as rotary; give --rotary-base where the model has its own."
    layers = [run.layer for run in model.layers]
    if any(isinstance(layer.mixer, Attention) and layer.mixer.window_tokens for layer in layers):
        yield "Local attention windows are not written: see --window-size."
    if any(layer.num_norms > 2 for layer in layers):
        yield "Norms after attention and feed-forward are not written."
