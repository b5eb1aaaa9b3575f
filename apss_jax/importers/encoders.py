"""Encoders and encoder-decoders: BERT and its relatives, T5."""

from __future__ import annotations

from apss_jax.importers.decoders import ModelFrom, runs
from apss_jax.importers.fields import HEADS, HIDDEN, INTERMEDIATE, LAYERS, Fields, changed
from apss_jax.schema.layers import Attention, DenseMlp, Layer
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.weights import MAX_LAYERS


def bert(f: Fields) -> Model:
    """Returns a BERT: the encoder with its pooler, whatever head the file was saved with."""
    hidden, heads = f.size(*HIDDEN), f.size(*HEADS)
    if hidden % heads:
        raise f.wrong(HEADS[0], f"must divide the hidden size {hidden}", "Correct one of the two")
    mixer = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        causal=False,
        qkv_bias=True,
        output_bias=True,
    )
    dense = DenseMlp(intermediate_size=f.size(*INTERMEDIATE), gated=False, bias=True)
    layer = Layer(mixer=mixer, feed_forward=dense, norm="layer")
    positions = f.size("max_position_embeddings")
    f.note("counted as the encoder with its pooler; a task head is not included")
    return Model(
        name=f.text("model_type", "bert"),
        hidden_size=hidden,
        embedding=Embedding(
            vocab_size=f.size("vocab_size"),
            num_positions=positions,
            num_token_types=f.count("type_vocab_size", default=2),
            norm="layer",
        ),
        layers=(LayerRun(repeat=f.size(*LAYERS, most=MAX_LAYERS), layer=layer),),
        head=Head(kind="pooler", norm=None),
        max_seq_len=positions,
    )


def t5(f: Fields) -> Model:
    """Returns a T5: relative positions in the first layer of each tower, maybe gated and untied."""
    kind, encoder = f.text("model_type", "t5"), f.size(*LAYERS, most=MAX_LAYERS)
    decoder = f.size("num_decoder_layers", default=encoder, most=MAX_LAYERS)
    layers = [_t5_layer(f, i == 0, cross=False) for i in range(encoder)]
    layers += [_t5_layer(f, i == 0, cross=True) for i in range(decoder)]
    return Model(
        name=kind,
        hidden_size=f.size(*HIDDEN),
        embedding=Embedding(vocab_size=f.size("vocab_size")),
        layers=runs(layers),
        encoder_layers=encoder,
        head=Head(tied=f.flag("tie_word_embeddings", kind != "mt5"), num_final_norms=2),
        max_seq_len=f.optional_size("n_positions"),
    )


def _t5_layer(f: Fields, first: bool, *, cross: bool) -> Layer:
    every = f.text("model_type") == "umt5"
    buckets = f.size("relative_attention_num_buckets", default=32) if first or every else 0
    heads = f.size(*HEADS)
    plain = Attention(num_heads=heads, num_kv_heads=heads, head_dim=f.size("d_kv"), causal=False)
    mixer = changed(plain, relative_buckets=buckets, causal=cross)
    return Layer(
        mixer=mixer,
        cross_attention=plain if cross else None,
        feed_forward=DenseMlp(intermediate_size=f.size(*INTERMEDIATE), gated=_is_gated(f)),
        num_norms=3 if cross else 2,
    )


def _is_gated(f: Fields) -> bool:
    usual = "relu" if f.text("model_type", "t5") == "t5" else "gated-gelu"
    activation = f.text("feed_forward_proj", usual)
    return f.flag("is_gated_act", activation.startswith("gated-"))


FAMILIES: dict[str, ModelFrom] = {
    "bert": bert,
    "roberta": bert,
    "xlm-roberta": bert,
    "t5": t5,
    "mt5": t5,
    "umt5": t5,
}
