"""Fits constants to logarithms of measured figures: the likeliest values under their priors.

Gauss-Newton on standardised constants. A constant takes part only where the measurements shrink
its uncertainty (Fisher information beside the prior's) while those before it are free too, and no
more take part than there are different measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from apss_jax.calibration.constants import Constant
from apss_jax.schema.stack import Stack

LEARNED_BELOW = 0.7  # of its prior deviation left, at which a constant counts as determined
STEPS = 6  # Gauss-Newton's; logarithms of times are nearly linear in those of the constants
FARTHEST = 3.0  # deviations that a fit may move a constant
SETTLED = 1e-3
HUBER = 1.345  # deviations from which a run loses weight: 95 % efficient on normal errors

PerRun = Float[np.ndarray, " batch"]
Sensitivity = Float[np.ndarray, "batch features"]

PredictFn = Callable[[Stack], PerRun]
"""Returns the logarithm of what a stack predicts of each run."""


@dataclass(frozen=True, eq=False)
class ConstantFit:
    """The fitted stack, what it was fitted in, and how sure that is."""

    stack: Stack
    fitted: tuple[Constant, ...]
    left: dict[str, float]  # share of the prior deviation that remains, by constant
    residual: PerRun  # logarithm of measured over predicted
    predicted_deviation: float  # of a prediction, from what is not known of the constants


@dataclass(frozen=True, eq=False)
class _Task:
    """One fit's givens."""

    base: Stack
    predict: PredictFn
    measured: PerRun
    noise: float

    def stack_at(self, constants: Sequence[Constant], at: Float[np.ndarray, " features"]) -> Stack:
        moves = {c.field: c.moved(self.base, float(z)) for c, z in zip(constants, at, strict=True)}
        return self.base.model_copy(update=moves)

    def slopes(
        self, constants: Sequence[Constant], at: Float[np.ndarray, " features"], here: PerRun
    ) -> Sensitivity:
        """Returns how each prediction moves with each constant, per deviation."""
        columns = []
        for i, constant in enumerate(constants):
            step = constant.probe(self.base)
            moved = at.copy()
            moved[i] += step
            columns.append((self.predict(self.stack_at(constants, moved)) - here) / step)
        return np.stack(columns, axis=1) if columns else np.zeros((len(here), 0))

    def covariance(self, slopes: Sensitivity) -> Float[np.ndarray, "features features"]:
        """Returns that of the standardised constants given the measurements."""
        information = slopes.T @ slopes / self.noise**2 + np.eye(slopes.shape[1])
        return np.linalg.inv(information)


def fit_constants(
    base: Stack,
    constants: Sequence[Constant],
    predict: PredictFn,
    measured: PerRun,
    noise: float,
    *,
    overall_first: bool = False,
) -> ConstantFit:
    """Returns the fit; `overall_first` fits the first constant before any other is looked at.

    `noise` is the standard deviation of a logarithm that no constant explains. Measurements must
    be of different runs.
    """
    task = _Task(base, predict, measured, noise)
    movable = [constant for constant in constants if constant.can_move(base)]
    slopes = task.slopes(movable, np.zeros(len(movable)), predict(base))
    chosen, left = _chosen(task, movable, slopes, [0] if overall_first and movable else [])
    fitted = [movable[i] for i in chosen]
    stack = task.stack_at(fitted, _optimum(task, fitted)) if fitted else base
    spread = slopes @ task.covariance(slopes) @ slopes.T
    return ConstantFit(
        stack=stack,
        fitted=tuple(fitted),
        left={constant.field: left[i] for i, constant in enumerate(movable)},
        residual=measured - predict(stack),
        predicted_deviation=float(np.sqrt(np.trace(spread) / max(len(measured), 1))),
    )


def _chosen(
    task: _Task, constants: Sequence[Constant], slopes: Sensitivity, first: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Returns the constants to fit, the best determined first, and what is left of each one's."""
    chosen = list(first)[: len(task.measured)]
    while len(chosen) < len(task.measured):
        rest = [i for i in range(len(constants)) if i not in chosen]
        shares = [(_left(task, slopes, chosen, i), i) for i in rest]
        share, best = min(shares, default=(1.0, -1))
        if share >= LEARNED_BELOW:
            break
        chosen.append(best)
    return chosen, [_left(task, slopes, chosen, i) for i in range(len(constants))]


def _left(task: _Task, slopes: Sensitivity, chosen: Sequence[int], index: int) -> float:
    """Returns the deviation that a constant keeps when it is fitted beside those chosen."""
    free = [*(i for i in chosen if i != index), index]
    return float(np.sqrt(task.covariance(slopes[:, free])[-1, -1]))


def _optimum(task: _Task, constants: Sequence[Constant]) -> Float[np.ndarray, " features"]:
    at = np.zeros(len(constants))
    for _ in range(STEPS):
        here = task.predict(task.stack_at(constants, at))
        slopes = task.slopes(constants, at, here)
        missed = task.measured - here
        weighted = np.sqrt(_weights(missed / task.noise))[:, None] * slopes
        pull = slopes.T @ (_weights(missed / task.noise) * missed) / task.noise**2 - at
        step = task.covariance(weighted) @ pull
        at = np.clip(at + step, -FARTHEST, FARTHEST)
        if np.abs(step).max() < SETTLED:
            break
    return at


def _weights(deviations: PerRun) -> PerRun:
    """Returns Huber's weights: a run that no constant explains pulls as hard as one at the edge."""
    return 1.0 / np.maximum(np.abs(deviations) / HUBER, 1.0)
