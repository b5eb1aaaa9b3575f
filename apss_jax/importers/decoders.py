"""Decoder-only families that share one recipe: attention, a feed-forward part, and norms.

A family is a row of `DENSE`: what its modelling code fixes, and what it assumes where a config is
silent. Families with experts or other mixers pass their own functions of the layer index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from apss_jax.importers.fields import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    POSITIONS,
    Fields,
    changed,
)
from apss_jax.schema.layers import Attention, DenseMlp, FeedForward, Layer, Mixer, NormKind
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.weights import MAX_LAYERS

Setting = bool | tuple[str, bool]  # fixed by the family, or (field, what its absence means)
MixerOf = Callable[[int], Mixer | None]
FeedForwardOf = Callable[[int], FeedForward | None]
ModelFrom = Callable[[Fields], Model]

ATTENTION_BIAS: Setting = ("attention_bias", False)
MLP_BIAS: Setting = ("mlp_bias", False)
USE_BIAS: Setting = ("use_bias", False)


@dataclass(frozen=True)
class Traits:
    """What a family's architecture fixes, or assumes where its config says nothing."""

    qkv_bias: Setting = False
    output_bias: Setting = False
    mlp_bias: Setting = False
    gated: bool = True
    norm: NormKind = "rms"
    num_norms: int = 2
    final_norm: bool = True
    head_norm: Setting = False
    width_norm: Setting = False
    sinks: bool = False
    tied: bool = False
    head_bias: Setting = False
    head_dim: int | None = None  # where the family does not divide the hidden size by the heads
    kv_heads: int | None = None  # None: as many as heads
    window_period: int = 0  # every n-th layer attends globally, the others locally; 0: no pattern
    window_field: str = "sliding_window"
    window_flag: str | None = None  # a flag without which the window means nothing


DENSE: dict[str, Traits] = {
    "llama": Traits(qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS),
    "mistral": Traits(),
    "ministral": Traits(),
    "ministral3": Traits(head_dim=128),
    "qwen2": Traits(qkv_bias=True, window_flag="use_sliding_window"),
    "qwen3": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, head_norm=True, head_dim=128,
        window_flag="use_sliding_window",
    ),
    "gemma": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, tied=True, head_dim=256
    ),
    "gemma2": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, num_norms=4, tied=True, head_dim=256,
        window_period=2,
    ),
    "phi3": Traits(),
    "starcoder2": Traits(
        qkv_bias=("use_bias", True), output_bias=("use_bias", True), mlp_bias=("use_bias", True),
        gated=False, norm="layer", tied=True,
    ),
    "olmo": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, num_norms=0, final_norm=False
    ),  # its norms have no weights
    "olmo2": Traits(qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, width_norm=True),
    "olmo3": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, width_norm=True, window_period=4
    ),
    "granite": Traits(qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS),
    "glm": Traits(qkv_bias=("attention_bias", True), head_dim=128),
    "glm4": Traits(qkv_bias=("attention_bias", True), num_norms=4, head_dim=128),
    "cohere": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, norm="layer_no_bias", num_norms=1,
        width_norm=("use_qk_norm", False), tied=True,
    ),
    "cohere2": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, norm="layer_no_bias", num_norms=1,
        tied=True, window_period=4,
    ),
    "nemotron": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS, gated=False,
        norm="layer",
    ),
    "smollm3": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS, tied=True,
        window_flag="use_sliding_window",
    ),
    "exaone": Traits(),
    "exaone4": Traits(head_norm=True, window_period=4),
    "ernie4_5": Traits(
        qkv_bias=USE_BIAS, output_bias=USE_BIAS, mlp_bias=USE_BIAS, tied=True, head_dim=128
    ),
    "hunyuan_v1_dense": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, head_norm=True
    ),
    "seed_oss": Traits(
        qkv_bias=("attention_bias", True), output_bias=("attention_out_bias", False),
        mlp_bias=MLP_BIAS, head_dim=128,
    ),
    "arcee": Traits(
        qkv_bias=ATTENTION_BIAS, output_bias=ATTENTION_BIAS, mlp_bias=MLP_BIAS, gated=False
    ),
    "internlm3": Traits(
        qkv_bias=("qkv_bias", False), output_bias=("bias", False), mlp_bias=("bias", False),
        head_dim=128,
    ),
    "internlm2": Traits(qkv_bias=("bias", False), output_bias=("bias", False)),
    "baichuan": Traits(),
}  # fmt: skip


def setting(f: Fields, value: Setting) -> bool:
    """Returns what a family fixes, or what the config says of it."""
    return value if isinstance(value, bool) else f.flag(*value)


def heads_and_size(f: Fields, traits: Traits, hidden: int) -> tuple[int, int, int]:
    """Returns (heads, key/value heads, head size); an explicit head size is authoritative."""
    heads = f.size(*HEADS)
    kv_heads = f.optional_size(*KV_HEADS) or traits.kv_heads or heads
    if heads % kv_heads:
        rule = f"must divide the {heads} attention heads"
        raise f.wrong(KV_HEADS[0], rule, "Correct one of the two")
    head_dim = f.optional_size("head_dim") or traits.head_dim
    if head_dim is None and hidden % heads:
        rule = f"must divide the hidden size {hidden}, since there is no head_dim"
        raise f.wrong(HEADS[0], rule, "Correct one of the two, or add head_dim")
    return heads, kv_heads, head_dim or hidden // heads


def windows(f: Fields, traits: Traits, num_layers: int) -> list[int | None]:
    """Returns how many tokens each layer attends to; None means the whole sequence."""
    window = f.count(traits.window_field) or None
    return [window if local else None for local in _is_local(f, traits, num_layers)]


def _is_local(f: Fields, traits: Traits, num_layers: int) -> list[bool]:
    kinds = layer_types(f, num_layers)
    if kinds is not None:
        return [kind != "full_attention" for kind in kinds]
    if traits.window_period:
        names = ("sliding_window_pattern", "_sliding_window_pattern")
        period = f.size(*names, default=traits.window_period)
        return [(i + 1) % period > 0 for i in range(num_layers)]
    if traits.window_flag is None:
        return [True] * num_layers
    first = f.count("max_window_layers")
    return [i >= first and f.flag(traits.window_flag, False) for i in range(num_layers)]


def layer_types(
    f: Fields,
    num_layers: int,
    allowed: Sequence[str] = ("full_attention", "sliding_attention", "chunked_attention"),
    name: str = "layer_types",
) -> tuple[str, ...] | None:
    """Returns the kind of each layer as the config lists them, or None."""
    kinds = f.texts(name)
    if kinds is None:
        return None
    if len(kinds) != num_layers:
        raise f.wrong(name, f"must have one entry for each of {num_layers} layers", "Correct it")
    unknown = sorted(set(kinds) - set(allowed))
    if unknown:
        raise f.wrong(name, f"names {unknown[0]!r}, which cannot be represented here",
                      f"Known: {', '.join(allowed)}")  # fmt: skip
    return kinds


def attention(f: Fields, traits: Traits, hidden: int) -> Attention:
    """Returns attention over the whole sequence."""
    heads, kv_heads, head_dim = heads_and_size(f, traits, hidden)
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=setting(f, traits.qkv_bias),
        output_bias=setting(f, traits.output_bias),
        head_norm=setting(f, traits.head_norm),
        width_norm=setting(f, traits.width_norm),
        sinks=traits.sinks,
    )


def attentions(f: Fields, traits: Traits, hidden: int, num_layers: int) -> list[Attention]:
    """Returns the attention of each layer, local ones with their windows."""
    base, found = attention(f, traits, hidden), windows(f, traits, num_layers)
    kinds = {w: changed(base, window_tokens=w) for w in set(found)}
    return [kinds[w] for w in found]


def mlp(f: Fields, traits: Traits, *names: str) -> DenseMlp:
    """Returns the dense feed-forward part whose width has one of the names."""
    return DenseMlp(
        intermediate_size=f.size(*(names or INTERMEDIATE)),
        gated=traits.gated,
        bias=setting(f, traits.mlp_bias),
    )


def runs(layers: Iterable[Layer]) -> tuple[LayerRun, ...]:
    """Returns the layers with equal neighbours counted together."""
    return tuple(LayerRun(repeat=len(list(same)), layer=layer) for layer, same in groupby(layers))


def decoder(
    f: Fields,
    traits: Traits,
    *,
    mixer_of: MixerOf | None = None,
    feed_forward_of: FeedForwardOf | None = None,
    num_positions: int = 0,
) -> Model:
    """Returns a decoder-only model; parts that are not given follow the traits."""
    hidden, num_layers = f.size(*HIDDEN), f.size(*LAYERS, most=MAX_LAYERS)
    if mixer_of is None:
        mixer_of = attentions(f, traits, hidden, num_layers).__getitem__
    if feed_forward_of is None:
        parts: list[FeedForward | None] = [mlp(f, traits)] * num_layers
    else:
        parts = [feed_forward_of(index) for index in range(num_layers)]
    layers = [
        Layer(
            mixer=mixer_of(index),
            feed_forward=parts[index],
            norm=traits.norm,
            num_norms=traits.num_norms,
        )
        for index in range(num_layers)
    ]
    return assemble(f, traits, layers, num_positions=num_positions)


def assemble(
    f: Fields, traits: Traits, layers: Iterable[Layer], *, num_positions: int = 0
) -> Model:
    """Returns the model of these layers between a token table and a language head."""
    return Model(
        name=f.text("model_type", "model"),
        hidden_size=f.size(*HIDDEN),
        embedding=Embedding(vocab_size=f.size("vocab_size"), num_positions=num_positions),
        layers=runs(layers),
        head=Head(
            tied=f.flag("tie_word_embeddings", traits.tied),
            bias=setting(f, traits.head_bias),
            norm=traits.norm if traits.final_norm else None,
        ),
        max_seq_len=f.optional_size(*POSITIONS),
    )


def _dense(traits: Traits) -> ModelFrom:
    return lambda f: decoder(f, traits)


FAMILIES: dict[str, ModelFrom] = {name: _dense(traits) for name, traits in DENSE.items()}
