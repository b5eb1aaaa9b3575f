"""Which layers stood on which stage, where a run or its framework says so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from apss_jax.calibration.gaps import UnusableRunError
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp
from apss_jax.schema.model import Model

Offsets = Int[np.ndarray, " offsets"]
# DeepSpeed's GPT-2 pipeline lists the embedding and a transpose before the layers, and a transpose,
# the final norm, the logits and a conversion after them (Megatron-LM v1.1.5, gpt2_model.py).
MODULES_BEFORE, MODULES_AFTER = 2, 4
MODULES_BESIDE_LAYERS = 3


def offsets_of_boundaries(boundaries: Sequence[int], num_layers: int, pieces: int) -> Offsets:
    """Returns the first unit of each piece, and the end, from boundaries between layers.

    Boundaries may count DeepSpeed's modules instead of layers. Raises `UnusableRunError`.
    """
    bounds = np.array(boundaries)
    extra = int(bounds[-1]) - num_layers if len(bounds) else -1
    if extra not in (0, MODULES_BEFORE + MODULES_AFTER):
        raise UnusableRunError("stage boundaries do not fit the number of layers")
    if len(bounds) != pieces + 1 or bounds[0] != 0 or (np.diff(bounds) < 0).any():
        raise UnusableRunError("stage boundaries do not fit the number of stages")
    layers = np.clip(bounds - (MODULES_BEFORE if extra else 0), 0, num_layers)
    return _with_ends(layers, num_layers)


def offsets_by_cost(model: Model, pieces: int) -> Offsets:
    """Returns the cuts of a framework that gives each stage an equal share of matrix products.

    huggingface/nanotron src/nanotron/models/base.py, as the memory calculator of its Ultra-Scale
    Playbook states it: blocks are placed in order; a stage is closed by the block with which its
    own cost reaches an even share of the whole, or that leaves one block for each stage after it.
    """
    costs = _block_costs(model)
    share, counts, cost = sum(costs) / pieces, [0], 0.0
    for placed, own in enumerate(costs, start=1):
        counts[-1] += 1
        cost += own
        left, stages_left = len(costs) - placed, pieces - len(counts)
        if stages_left and (cost >= share or left <= stages_left):
            counts.append(0)
            cost = 0.0
    return np.cumsum([0, *counts, *[0] * (pieces - len(counts))])


def offsets_by_module(model: Model, pieces: int) -> Offsets:
    """Returns the cuts of a framework that counts the embedding, final norm and head as layers.

    The first stages get one more where they do not divide evenly. A norm apart from the head is
    taken to stand with it.
    """
    count = model.num_layers + MODULES_BESIDE_LAYERS
    sizes = count // pieces + (np.arange(pieces) < count % pieces)
    cuts = np.minimum(np.cumsum([0, *sizes]), model.num_layers + 1)
    cuts[-1] = model.num_layers + 2
    return cuts


def _with_ends(layers: Offsets, num_layers: int) -> Offsets:
    """Returns offsets of units from offsets of layers: the ends join the first and last piece."""
    units = layers + 1
    units[0], units[-1] = 0, num_layers + 2
    return units


def _block_costs(model: Model) -> list[float]:
    """Returns the costs of units: embedding (0), layers as if all heads had own keys, head."""
    hidden = model.hidden_size or 0
    vocab = model.embedding.vocab_size if model.embedding else 0
    layers = [_layer_cost(layer, hidden) for layer in model.layer_sequence]
    return [0.0, *layers, float(vocab * hidden)]


def _layer_cost(layer: Layer, hidden: int) -> float:
    mixer, part = layer.mixer, layer.feed_forward
    attention = 4 * mixer.num_heads * mixer.head_dim * hidden if isinstance(mixer, Attention) else 0
    width = part.intermediate_size if isinstance(part, DenseMlp) else 0
    if isinstance(part, MoeMlp):
        width = part.expert_intermediate_size * part.experts_per_token
    return float(attention + 3 * width * hidden)
