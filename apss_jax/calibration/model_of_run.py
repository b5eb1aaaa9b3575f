"""The model that a run trained: of the library where name and shape agree, else from its sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from apss_jax.calibration.families import ModelFamily, family_named
from apss_jax.calibration.gaps import Gaps, require
from apss_jax.importers.load import list_models, load_model
from apss_jax.schema.layers import Attention, DenseMlp, FeedForward, Layer, MoeMlp
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.runs import Run

PARAMETERS_IN_NAME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*B\b", re.IGNORECASE)
NAME_TOLERANCE: Final = 0.01  # of the parameters, within which a size in a name confirms a count
NAME_DIGITS: Final = 3  # of a size in a name, below which it is too round to confirm anything
GATED_MULTIPLE: Final = 256  # to which Llama rounds 8/3 of the width up
LARGE_HEAD, SMALL_HEAD = 128, 64  # head sizes of large and of small models without a stated number
SMALL_HIDDEN: Final = 2560
DEFAULT_EXPERTS_PER_TOKEN: Final = 2


def model_of_run(run: Run, gaps: Gaps) -> Model:
    """Returns the model; raises `UnusableRunError` without layers or hidden size."""
    layers = require(run.num_layers, "no number of layers")
    hidden = require(run.hidden, "no hidden size")
    known = _from_library(run, layers)
    if known is not None:
        return known
    return _from_sizes(_Sizes.of(run, gaps, hidden, layers))


@dataclass(frozen=True)
class _Sizes:
    """The sizes of one run, blanks filled."""

    name: str
    family: ModelFamily
    hidden: int
    layers: int
    width: int  # of the feed-forward part, or of one expert
    heads: int
    kv_heads: int
    vocab: int
    positions: int
    experts: int  # 0: none
    experts_per_token: int

    @staticmethod
    def of(run: Run, gaps: Gaps, hidden: int, layers: int) -> _Sizes:
        family = family_named(run.model_name, hidden, run.ffn_hidden)
        width = gaps.fill("ffn_hidden", run.ffn_hidden, _usual_width(family, hidden))
        heads = gaps.fill("num_heads", run.num_heads, _usual_heads(hidden))
        if run.num_experts and not run.topk:
            gaps.assume("topk")
        return _Sizes(
            name=run.model_name or f"h{hidden} L{layers}",
            family=family,
            hidden=hidden,
            layers=layers,
            width=width,
            heads=heads,
            kv_heads=gaps.fill("num_kv_heads", run.num_kv_heads, heads),
            vocab=gaps.fill("vocab", run.vocab, family.vocab_size),
            positions=run.seq_len or 0 if family.learned_positions else 0,
            experts=run.num_experts or 0,
            experts_per_token=min(run.topk or DEFAULT_EXPERTS_PER_TOKEN, run.num_experts or 1),
        )


@cache  # one object for equal models, so that runs can be grouped by it
def _from_sizes(sizes: _Sizes) -> Model:
    """Returns the model, ends tied as its family's are unless the size in its name says no."""
    family = sizes.family
    usual, other = (_described(sizes, tied) for tied in (family.tied, not family.tied))
    return other if _agrees(other) and not _agrees(usual) else usual


def _described(sizes: _Sizes, tied: bool) -> Model:
    family = sizes.family
    mixer = Attention(
        num_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=max(sizes.hidden // sizes.heads, 1),
        qkv_bias=family.bias,
        output_bias=family.bias,
    )
    layer = Layer(mixer=mixer, feed_forward=_feed_forward(sizes), norm=family.norm)
    embedding = Embedding(
        vocab_size=sizes.vocab,
        num_positions=sizes.positions,
        norm=family.norm if family.embedding_norm else None,
    )
    return Model(
        name=sizes.name,
        hidden_size=sizes.hidden,
        embedding=embedding,
        layers=(LayerRun(repeat=sizes.layers, layer=layer),),
        head=Head(tied=tied, norm=family.norm),
    )


def _feed_forward(sizes: _Sizes) -> FeedForward:
    family = sizes.family
    if not sizes.experts:
        return DenseMlp(intermediate_size=sizes.width, gated=family.gated, bias=family.bias)
    return MoeMlp(
        num_experts=sizes.experts,
        experts_per_token=sizes.experts_per_token,
        expert_intermediate_size=sizes.width,
        gated=family.gated,
    )


def _usual_width(family: ModelFamily, hidden: int) -> int:
    if not family.gated:
        return 4 * hidden
    return -(-8 * hidden // 3 // GATED_MULTIPLE) * GATED_MULTIPLE


def _usual_heads(hidden: int) -> int:
    size = SMALL_HEAD if hidden < SMALL_HIDDEN else LARGE_HEAD
    return max(1, hidden // size)


def _agrees(model: Model) -> bool:
    """Returns whether the size in a model's name is its number of parameters."""
    billions = model.num_parameters / 1e9
    texts = PARAMETERS_IN_NAME.findall(model.name)
    sizes = [float(t) for t in texts if len(t.replace(".", "")) >= NAME_DIGITS]
    return any(abs(size - billions) <= NAME_TOLERANCE * billions for size in sizes)


def _from_library(run: Run, layers: int) -> Model | None:
    """Returns the library model that the name contains, with the run's depth and vocabulary."""
    plain = _plain(run.model_name or "")
    for key, name in _library_keys():
        if key in plain:
            found = _adapted(name, layers, run.vocab)
            if found is not None and _same_shape(found, run):
                return found
    return None


@cache
def _library_keys() -> tuple[tuple[str, str], ...]:
    """Returns names without punctuation, the longest first, so that the closest one matches."""
    pairs = [(_plain(name), name) for name in list_models()]
    return tuple(sorted(pairs, key=lambda pair: (-len(pair[0]), pair)))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _adapted(name: str, layers: int, vocab: int | None) -> Model | None:
    """Returns a library model with another depth, where all of its layers are equal, or None."""
    model = load_model(name)
    if model.table is not None or model.embedding is None:
        return None
    if model.num_layers != layers and len(model.layers) != 1:
        return None
    deep = model.layers
    if model.num_layers != layers:
        deep = (LayerRun(repeat=layers, layer=model.layers[0].layer),)
    size = vocab or model.embedding.vocab_size
    return Model(
        name=model.name,
        hidden_size=model.hidden_size,
        embedding=model.embedding.model_copy(update={"vocab_size": size}),
        layers=deep,
        head=model.head,
        max_seq_len=model.max_seq_len,
    )


def _same_shape(model: Model, run: Run) -> bool:
    layers = {id(entry.layer): entry.layer for entry in model.layers}.values()
    return run.hidden == model.hidden_size and any(
        all(given is None or given == size for given, size in _sizes(layer, run))
        for layer in layers
    )


def _sizes(layer: Layer, run: Run) -> Iterator[tuple[int | None, int]]:
    """Yields what the run states of a layer beside what the layer has."""
    mixer, part = layer.mixer, layer.feed_forward
    yield run.num_heads, getattr(mixer, "num_heads", 0)
    if isinstance(mixer, Attention):
        yield run.num_kv_heads, mixer.num_kv_heads
    if isinstance(part, DenseMlp):
        yield run.ffn_hidden, part.intermediate_size
        yield run.num_experts, 0
    if isinstance(part, MoeMlp):
        yield run.ffn_hidden, part.expert_intermediate_size
        yield run.num_experts, part.num_experts
        yield run.topk, part.experts_per_token
