"""What a training step has in common for the cuts and for the orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
import optax
from jaxtyping import Float, Int

from apss_jax.policy.batched import Params

Report = dict[str, float | int | str]
"""The figures of one step."""


@runtime_checkable
class Schedule(Protocol):
    """What steps of a head are planned from."""

    @property
    def steps(self) -> int:
        """How many there are."""
        ...

    @property
    def objective(self) -> str:
        """What is trained by after the warm start."""
        ...

    @property
    def warm_start(self) -> float:
        """The share of the steps that imitate the best solutions known."""
        ...

    @property
    def samples(self) -> int:
        """Solutions that the network draws for each problem of a step."""
        ...

    @property
    def shares(self) -> tuple[float, ...]:
        """How often a step takes each pool."""
        ...

    @property
    def softness(self) -> tuple[float, float]:
        """The softness of the first and of the last step."""
        ...


class StepPlan(NamedTuple):
    """What one step does: with which problems of which pool, and by which objective."""

    pool: int
    rows: Int[np.ndarray, "_"]
    objective: str
    drawn: int
    """Solutions that the network draws for each problem; none where it imitates."""
    softness: float

    def report(self, loss: Float[jax.Array, ""], gaps: Float[np.ndarray, "_ samples"]) -> Report:
        """Returns the figures of the step; gaps are those of what was drawn, then of others."""
        return {
            "pool": self.pool,
            "objective": self.objective,
            "loss": float(loss),
            "mean_gap_percent": mean_gap_percent(gaps[:, : self.drawn]),
        }


def planned(
    schedule: Schedule,
    step: int,
    sizes: Sequence[tuple[int, int]],
    rng: np.random.Generator,
) -> StepPlan:
    """Returns what a step does, given each pool's problems and how many of them a step takes."""
    pool = int(rng.choice(len(sizes), p=np.array(schedule.shares)))
    length, batch = sizes[pool]
    rows = rng.choice(length, min(batch, length), replace=False)
    done = step / schedule.steps
    objective = "imitation" if done < schedule.warm_start else schedule.objective
    drawn = 0 if objective == "imitation" else schedule.samples
    return StepPlan(pool, rows, objective, drawn, _softness_at(schedule.softness, done))


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


def _softness_at(softness: tuple[float, float], done: float) -> float:
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
