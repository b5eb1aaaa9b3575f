"""Synthetic models: what each layer takes, holds and sends, relative to a usual layer."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64


@dataclass(frozen=True)
class LayerCosts:
    """Relative figures of a model's layers, embedding first and head last."""

    time: Float64[np.ndarray, "layers"]
    parameters: Float64[np.ndarray, "layers"]
    activations: Float64[np.ndarray, "layers"]
    volume: Float64[np.ndarray, "layers"]
    """What is sent if the model is cut after the layer."""


def draw_layers(
    layers: int, pieces: int, head: tuple[float, float], rng: np.random.Generator
) -> LayerCosts:
    """Returns a model: equal, noisy, alternating or segmented layers, most with both ends."""
    has_ends = rng.random() < 0.85 and layers - 2 >= 0.75 * pieces
    inner = layers - 2 * has_ends
    kind = rng.random()
    time = _times(inner, kind, rng)
    parameters = time.copy() if rng.random() < 0.6 else np.ones(inner)
    if rng.random() < 0.15:
        period = int(rng.integers(2, 5))
        parameters[period - 1 :: period] *= rng.uniform(2.0, 8.0)
    activations = np.ones(inner) if rng.random() < 0.6 else time / time.mean()
    volume = np.ones(inner)
    if kind >= 0.82 and rng.random() < 0.5:
        volume = np.exp(np.repeat(rng.normal(0.0, 0.7, 8), -(-inner // 8))[:inner])
    if has_ends:
        head_time = float(np.exp(rng.uniform(*np.log(head))))
        vocabulary = head_time * rng.uniform(0.7, 1.2)
        time = np.concatenate([[rng.uniform(0.02, 0.3)], time, [head_time]])
        parameters = np.concatenate([[vocabulary], parameters, [vocabulary]])
        activations = np.concatenate([[0.3], activations, [0.7 * min(head_time, 4.0)]])
        volume = np.concatenate([[1.0], volume, [4.0]])
    return LayerCosts(time, parameters, activations, volume / np.median(volume))


def _times(count: int, kind: float, rng: np.random.Generator) -> Float64[np.ndarray, "layers"]:
    """Returns the times of a model's inner layers."""
    time = np.ones(count)
    if kind < 0.35:
        return time
    if kind < 0.65:
        return np.exp(rng.normal(0.0, rng.uniform(0.01, 0.1), count))
    if kind < 0.82:
        period = int(rng.integers(2, 7))
        time[int(rng.integers(period)) :: period] *= np.exp(rng.uniform(*np.log([0.3, 3.0])))
        return time
    segments = min(int(rng.integers(2, 5)), count)
    places = np.sort(rng.choice(np.arange(1, count), segments - 1, replace=False))
    for segment in np.split(np.arange(count), places):
        time[segment] *= np.exp(rng.uniform(*np.log([0.4, 2.5])))
    return time
