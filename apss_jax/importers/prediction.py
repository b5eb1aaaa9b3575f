"""Layers of multi-token prediction, which repeat a model's last layer beside its head."""

from __future__ import annotations

from apss_jax.importers.fields import changed
from apss_jax.schema.model import Model


def with_predictions(model: Model, count: int) -> Model:
    """Returns the model with so many layers of multi-token prediction.

    Each has two norms, a projection from twice the hidden size and a final norm; embedding and
    head are the model's own (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    if not count or model.hidden_size is None:
        return model
    last = changed(model.layers[-1], repeat=count)
    hidden = model.hidden_size
    parameters = count * (2 * hidden * hidden + 3 * hidden)
    return changed(model, mtp_layers=(last,), mtp_parameters=parameters)
