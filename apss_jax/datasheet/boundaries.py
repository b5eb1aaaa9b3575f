"""What each unit hands to the next."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from apss_jax.schema.model import Model


def carried_values(hidden_size: int, model: Model) -> Float[np.ndarray, " units"]:
    """Returns the values per token that leave each unit; nothing leaves the head.

    Between two decoder layers the encoder's output travels along, and inputs that later layers
    take directly (per-layer embeddings) travel until those layers have them.
    """
    count = model.num_layers
    values = np.full(count + 2, float(hidden_size))
    if model.encoder_layers:
        values[model.encoder_layers + 1 : count] += hidden_size
    per_layer = [layer.input_embedding_size for layer in model.layer_sequence]
    still_needed = np.cumsum(per_layer[::-1])[::-1]
    values[:count] += still_needed
    values[-1] = 0.0
    return values
