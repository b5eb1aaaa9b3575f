"""Axis words and array aliases: the vocabulary of every shape annotation.

An axis is one of these words; `layers - 1` and the like are arithmetic on them:

* `batch`: independent problems or instances, computed together;
* `samples`: alternatives drawn for one instance;
* `layers`: the layers of a model in order, embedding and head folded into their neighbours;
* `stages`: pipeline stages in order;
* `devices`: single accelerators, numbered node by node;
* `nodes`: hosts;
* `chunks`: consecutive layers that one device runs as a unit (virtual stages);
* `slots`: positions in a schedule's table;
* `micro_batches`: micro-batches of one step;
* `features`: what a network sees of one element.

The aliases are for arrays on the file side (numpy). Traced code annotates with `jax.Array`, as in
`Float[jax.Array, "stages"]`; this module imports no JAX, because everything imports it.
"""

from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

AXES: Final = (
    "batch",
    "samples",
    "layers",
    "stages",
    "devices",
    "nodes",
    "chunks",
    "slots",
    "micro_batches",
    "features",
)

LayerValues = Float[np.ndarray, "layers"]
"""One figure for each layer."""

BoundaryValues = Float[np.ndarray, "layers-1 stages-1"]
"""One figure for cutting after a layer to end a stage."""

StageValues = Float[np.ndarray, "stages"]
"""One figure for each stage."""

Cuts = Int[np.ndarray, "stages-1"]
"""The 0-based index of the last layer before each cut, ascending."""

DeviceMask = Bool[np.ndarray, "devices"]
"""Which devices are meant."""

NodePairs = Float[np.ndarray, "nodes nodes"]
"""One figure for each ordered pair of nodes."""
