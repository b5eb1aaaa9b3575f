"""Axis words and array aliases: the vocabulary of every shape annotation.

* `batch`: independent problems or instances, computed together;
* `samples`: alternatives drawn for one instance;
* `units`: what a pipeline may be cut between: the embedding, each layer, the head;
* `layers`: the layers of a model in order, embedding and head folded into their neighbours;
* `boundaries`: the places between two neighbouring layers, one fewer than layers;
* `stages`: pipeline stages in order;
* `cuts`: the boundaries that end a stage, one fewer than stages;
* `devices`: single accelerators, numbered node by node;
* `nodes`: hosts;
* `chunks`: consecutive layers that one device runs as a unit (virtual stages);
* `pieces`: the chunks of all stages in the order of the model, stages fastest;
* `slots`: positions in a schedule's table;
* `micro_batches`: micro-batches of one step;
* `passes`: forward and backward;
* `device_types`: kinds of accelerators;
* `comm_kinds`: tensor, context and expert collectives;
* `parameter_kinds`: dense parameters, expert parameters;
* `settings`: what decides a layer's cost apart from its device (degrees, micro-batch, recompute);
* `zero_stages`: ZeRO 0 to 3;
* `offsets`: ends of units, one more than units: the axis of prefix sums;
* `quantities`: what is summed over units, side by side;
* `spans`: powers of two, as numbers of neighbouring units;
* `cells`: offsets, chunks or stages, whichever units are summed over;
* `data_ranks`, `context_ranks`, `tensor_ranks`: places in the groups that one stage forms;
* `ranks`: devices of one group or of one stage, in order;
* `groups`: groups that communicate at once;
* `time_parts`, `memory_parts`: the named shares of a step's time and of a stage's memory;
* `window`: neighbouring places where a piece may end;
* `levels`: limits that reaches are told for, from tight to loose;
* `ceilings`: limits on the time of the slowest piece that a score tells apart, ascending;
* `features`: what a network sees of one element;
* `tokens`: places in a sequence;
* `hidden`: the values of one token between layers;
* `heads`, `kv_heads`, `head_values`: attention heads, those of keys and values, and the values of
  one token in one head.

Shapes are checked while the tests run, where arithmetic on an axis (`stages-1`) is only understood
in a return type; hence `boundaries` and `cuts`.

The aliases are for arrays on the file side (numpy). Traced code annotates with `jax.Array`, as in
`Float[jax.Array, "stages"]`; this module imports no JAX, because everything imports it.
"""

from typing import Final

import numpy as np
from jaxtyping import Float, Int

AXES: Final = (
    "batch",
    "samples",
    "units",
    "layers",
    "boundaries",
    "stages",
    "cuts",
    "devices",
    "nodes",
    "chunks",
    "pieces",
    "slots",
    "micro_batches",
    "passes",
    "device_types",
    "comm_kinds",
    "parameter_kinds",
    "settings",
    "zero_stages",
    "offsets",
    "quantities",
    "spans",
    "cells",
    "data_ranks",
    "context_ranks",
    "tensor_ranks",
    "ranks",
    "groups",
    "time_parts",
    "memory_parts",
    "window",
    "levels",
    "ceilings",
    "features",
    "tokens",
    "hidden",
    "heads",
    "kv_heads",
    "head_values",
)

LayerValues = Float[np.ndarray, "layers"]
"""One figure for each layer."""

StageValues = Float[np.ndarray, "stages"]
"""One figure for each stage."""

CutValues = Float[np.ndarray, "boundaries cuts"]
"""One figure for each boundary and each cut that could be there."""

Cuts = Int[np.ndarray, "cuts"]
"""The 0-based index of the last layer before each cut, ascending."""
