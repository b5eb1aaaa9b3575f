"""What a training step has in common for the cuts and for the orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Float, Int

from apss_jax.policy.batched import Params


def clipped_adam(
    peak: float, steps: int, *, warm_up: int, end: float
) -> optax.GradientTransformation:
    """Returns Adam with its rate warmed up to `peak`, then a cosine down to `end`."""
    rate = optax.warmup_cosine_decay_schedule(0.0, peak, min(warm_up, steps // 10 + 1), steps, end)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.98))


def moved(
    optimizer: optax.GradientTransformation,
    loss_of: Callable[..., jax.Array],
    params: Params,
    moments: Any,
    problems: tuple[Any, ...],
) -> tuple[jax.Array, Params, Any]:
    """Returns the mean loss of some problems, and weights and moments after one step against it.

    `loss_of` takes the weights and what one problem has in each of `problems`.
    """

    def mean(params: Params) -> jax.Array:
        return jax.vmap(partial(loss_of, params))(*problems).mean()

    loss, gradient = jax.value_and_grad(mean)(params)
    updates, moments = optimizer.update(gradient, moments, params)
    return loss, optax.apply_updates(params, updates), moments


def softness_at(softness: tuple[float, float], done: float) -> float:
    """Returns the softness after a share of the steps: from the first to the last, by one ratio."""
    return softness[0] * (softness[1] / softness[0]) ** done


def mean_gap_percent(gaps: Float[np.ndarray, "_ _"]) -> float:
    """Returns the mean of the gaps that are finite, 0 where none is."""
    known = gaps[np.isfinite(gaps)]
    return float(100 * known.mean()) if known.size else 0.0


def keep_best(
    elites: Int[np.ndarray, "batch stages"],
    elite_s: Float[np.ndarray, "batch"],
    rows: Int[np.ndarray, "_"],
    offered: Int[np.ndarray, "_ samples stages"],
    costs_s: Float[np.ndarray, "_ samples"],
) -> None:
    """Writes the best of what some problems are offered over elites that take longer."""
    best, each = costs_s.argmin(axis=1), np.arange(len(rows))
    better = costs_s[each, best] < elite_s[rows]
    elite_s[rows[better]] = costs_s[each, best][better]
    elites[rows[better]] = offered[each, best][better]
