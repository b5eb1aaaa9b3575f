"""The model that Megatron's arguments describe: a GPT with dense or routed feed-forward parts.

Source of flags and defaults: Megatron-LM, megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py (core 0.16).
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from apss_jax.importers.megatron_arguments import LAYERS, PREDICTION, TENSOR, MegatronArguments
from apss_jax.importers.prediction import with_predictions
from apss_jax.schema.errors import mistake
from apss_jax.schema.layers import (
    Attention,
    DenseMlp,
    FeedForward,
    LatentAttention,
    Layer,
    MoeMlp,
    NormKind,
)
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.weights import MAX_LAYERS, MAX_SIZE

LARGEST: Final = MAX_SIZE // 16  # of a width or vocabulary, from which others are made
MAX_MULTIPLE: Final = 1024  # times a thousand thousand ranks it is still a size
VOCAB_MULTIPLE: Final = 128  # --make-vocab-size-divisible-by
GATED_MULTIPLE: Final = 64  # to which a gated width of two thirds is rounded down
DEFAULT_VOCAB: Final = 50_257  # of GPT-2, whose tokenizer Megatron's examples use
PATTERN: Final = re.compile(r"\[([01,\s]+)\](?:\*(\d{1,5}))?")
HYBRID: Final = ("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model")


def model_of_arguments(given: MegatronArguments) -> Model:
    """Returns the model, its vocabulary padded as Megatron pads it; raises `InputError`."""
    if given.has(*HYBRID):
        flag = next(flag for flag in HYBRID if given.has(flag))
        raise given.wrong(flag, "is not read", "Give the model with --model config.json")
    hidden = given.needed("--hidden-size", most=LARGEST)
    layers = given.needed(LAYERS, most=MAX_LAYERS)
    norm: NormKind = "rms" if given.text("--normalization") == "RMSNorm" else "layer"
    notes: list[str] = []
    runs = tuple(
        LayerRun(repeat=len(list(run)), layer=_layer(given, hidden, norm, routed=routed))
        for routed, run in groupby(_routed(given, layers))
    )
    vocab = padded_vocab(*_vocab(given, notes), given.degree(TENSOR))
    predictions = given.maybe_size(PREDICTION, least=0, most=MAX_LAYERS) or 0
    model = Model(
        name=f"h{hidden} L{layers}",
        source=given.file,
        notes=tuple(notes),
        hidden_size=hidden,
        embedding=Embedding(vocab_size=vocab, num_positions=_positions(given)),
        layers=runs,
        head=Head(tied=not given.has("--untie-embeddings-and-output-weights"), norm=norm),
        max_seq_len=given.maybe_size("--max-position-embeddings", "--seq-length"),
    )
    return with_predictions(model, predictions)


def padded_vocab(vocab: int, multiple: int, tensor_parallel: int) -> int:
    """Returns the rows of the token table: a multiple of `multiple` on every tensor rank.

    Source: Megatron-LM, `vocab_size_with_padding` of megatron/training/tokenizer.
    """
    step = multiple * tensor_parallel
    return -(-vocab // step) * step


def _vocab(given: MegatronArguments, notes: list[str]) -> tuple[int, int]:
    padded = given.maybe_size("--padded-vocab-size")
    if padded is not None:
        return padded, 1
    size = given.maybe_size("--vocab-size", most=LARGEST)
    if size is None:
        notes.append(f"a vocabulary of {DEFAULT_VOCAB} assumed: the arguments do not say it")
    multiple = given.size("--make-vocab-size-divisible-by", VOCAB_MULTIPLE, most=MAX_MULTIPLE)
    return size or DEFAULT_VOCAB, multiple


def _positions(given: MegatronArguments) -> int:
    kind = given.text("--position-embedding-type") or "learned_absolute"
    rotary = given.has("--use-rotary-position-embeddings", "--no-position-embedding")
    if kind != "learned_absolute" or rotary:
        return 0
    return given.maybe_size("--max-position-embeddings", "--seq-length") or 0


def _layer(given: MegatronArguments, hidden: int, norm: NormKind, *, routed: bool) -> Layer:
    mixer = _latent(given) if given.has("--multi-latent-attention") else _attention(given, hidden)
    part: FeedForward = _experts(given, hidden) if routed else _dense(given, hidden)
    return Layer(mixer=mixer, feed_forward=part, norm=norm)


def _biased(given: MegatronArguments) -> bool:
    return not given.has("--disable-bias-linear")


def _attention(given: MegatronArguments, hidden: int) -> Attention:
    heads = given.needed("--num-attention-heads")
    if hidden % heads and not given.has("--kv-channels"):
        rule = f"does not divide --hidden-size {hidden}, and there is no --kv-channels"
        raise given.wrong("--num-attention-heads", rule)
    groups = given.size("--num-query-groups", 1) if given.has("--group-query-attention") else heads
    return Attention(
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=given.size("--kv-channels", max(hidden // heads, 1)),
        qkv_bias=_biased(given) or given.has("--add-qkv-bias"),
        output_bias=_biased(given),
        head_norm=given.has("--qk-layernorm"),
    )


def _latent(given: MegatronArguments) -> LatentAttention:
    return LatentAttention(
        num_heads=given.needed("--num-attention-heads"),
        query_rank=given.maybe_size("--q-lora-rank"),
        kv_rank=given.size("--kv-lora-rank", 32),
        nope_head_dim=given.size("--qk-head-dim", 128),
        rope_head_dim=given.size("--qk-pos-emb-head-dim", 64),
        value_head_dim=given.size("--v-head-dim", 128),
    )


def _width(given: MegatronArguments, hidden: int) -> int:
    """Returns --ffn-hidden-size; a gated default has two thirds of four times the width."""
    gated = given.has("--swiglu")
    usual = 4 * hidden * 2 // 3 // GATED_MULTIPLE * GATED_MULTIPLE if gated else 4 * hidden
    return given.size("--ffn-hidden-size", max(usual, 1))


def _dense(given: MegatronArguments, hidden: int) -> DenseMlp:
    return DenseMlp(
        intermediate_size=_width(given, hidden), gated=given.has("--swiglu"), bias=_biased(given)
    )


def _experts(given: MegatronArguments, hidden: int) -> MoeMlp:
    return MoeMlp(
        num_experts=given.needed("--num-experts"),
        experts_per_token=given.size("--moe-router-topk", 2),
        expert_intermediate_size=given.size("--moe-ffn-hidden-size", _width(given, hidden)),
        gated=given.has("--swiglu"),
        router_bias=given.has("--moe-router-enable-expert-bias"),
        shared_intermediate_size=given.maybe_size("--moe-shared-expert-intermediate-size") or 0,
    )


def _routed(given: MegatronArguments, layers: int) -> list[bool]:
    """Returns whether each layer has experts: --moe-layer-freq is a number or a pattern."""
    if not given.has("--num-experts"):
        return [False] * layers
    text = given.text("--moe-layer-freq") or "1"
    if re.fullmatch(r"\d{1,5}", text) and int(text):
        return [index % int(text) == 0 for index in range(layers)]
    pieces = PATTERN.findall(text)
    if "+".join(_piece(*piece) for piece in pieces) != re.sub(r"[\s()]", "", text):
        raise given.wrong("--moe-layer-freq", "is no number and no pattern as ([0]*3+[1]*58)")
    found = [
        mark.strip() == "1"
        for marks, times in pieces
        for mark in marks.split(",") * int(times or 1)
    ][: layers + 1]
    if len(found) != layers:
        rule = f"has not one entry for each of {layers} layers"
        raise mistake("--moe-layer-freq", text, rule, "Correct the pattern", file=given.file)
    return found


def _piece(marks: str, times: str) -> str:
    plain = re.sub(r"\s", "", marks)
    return f"[{plain}]*{times}" if times else f"[{plain}]"
