"""Constants that measured runs and priors agree on best: robust least squares on logarithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import least_squares

from apss_jax.calibration.evidence import Evidence
from apss_jax.calibration.library_constants import (
    LibraryConstant,
    Values,
    prior_values,
    with_values,
)
from apss_jax.calibration.prediction import predict_subjects
from apss_jax.calibration.subject import Subject

STEP: Final = 0.01  # of a logarithm, for differences; predictions are float32
TOLERANCE: Final = 2e-3  # relative change of the misfit below which a fit has ended
INNER_TOLERANCE: Final = 1e-5  # the same for the tangent's own least misfit
INNER_EVALUATIONS: Final = 60
MAX_ROUNDS: Final = 6
LONGEST_STEP: Final = 1.0  # of a logarithm in one round
SHORTENED: Final = 0.3
EDGE: Final = 1e-9  # by which a point on a bound is inside it
USUAL: Final = 3.0  # misfit beyond which a run counts ever less
# In these multiples of it, one after the other, a tangent's least misfit is found: with the widest,
# no run is an outlier only because the constants are still far off (graduated non-convexity, Black
# and Rangarajan 1996).
WIDTHS: Final = (8.0, 4.0, 2.0, 1.0)
TINY: Final = 1e-300

Indices = Int[np.ndarray, " samples"]
Logs = Float[np.ndarray, " quantities"]
Misfits = Float[np.ndarray, " samples"]
Jacobian = Float[np.ndarray, "samples quantities"]
AllMisfits = Float[np.ndarray, " batch"]
AllSlopes = Float[np.ndarray, "batch quantities"]
NoteFn = Callable[[str], None]
"""Is told now and then how far a fit is."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a fit found."""

    constants: tuple[LibraryConstant, ...]
    values: Values
    determined_fraction: Float[np.ndarray, " quantities"]  # 0: the prior alone decides, 1: the runs


@dataclass(eq=False)
class Surface:
    """Misfits of some runs, and their derivatives, as functions of the constants' logarithms.

    Remembers the last derivatives, and in which runs each constant made any difference.
    """

    evidence: Evidence
    constants: tuple[LibraryConstant, ...]
    note: NoteFn = field(default=lambda _: None)
    _touched: list[Indices] = field(default_factory=list)
    _last: tuple[Logs, AllMisfits, AllSlopes] | None = None

    def misfits(self, logs: Logs, rows: Indices) -> Misfits:
        """Returns the misfits of some rows."""
        chosen = [self.evidence.subjects[i] for i in rows]
        if not chosen:
            return np.zeros(0)
        values = values_of(self.constants, logs)
        figures = predict_subjects(with_values(chosen, self.constants, values))
        return self.evidence.misfits(figures, rows)

    def tangent(self, logs: Logs, rows: Indices) -> tuple[Misfits, Jacobian]:
        """Returns misfits and derivatives of some rows, remembered ones where they cover these."""
        if self._last is None or not np.array_equal(self._last[0], logs):
            self._last = None
        if self._last is None or not np.isfinite(self._last[1][rows]).all():
            self._last = (logs.copy(), *self._derived(logs, rows))
        return self._last[1][rows], self._last[2][rows]

    def _derived(self, logs: Logs, rows: Indices) -> tuple[AllMisfits, AllSlopes]:
        """Returns misfits and derivatives of all rows, NaN and 0 for those not asked for."""
        base = np.full(len(self.evidence.subjects), np.nan)
        base[rows] = self.misfits(logs, rows)
        slopes = np.zeros((len(base), len(self.constants)))
        wanted = np.isfinite(base)
        for j, touched in enumerate(self._touching()):
            own = touched[wanted[touched]] if self.constants[j].prior.sigma else touched[:0]
            moved = logs.copy()
            moved[j] += STEP
            slopes[own, j] = (self.misfits(moved, own) - base[own]) / STEP
        self._learn(slopes, wanted)
        return base, slopes

    def _touching(self) -> list[Indices]:
        if not self._touched:
            subjects = self.evidence.subjects
            self._touched = [
                np.array([i for i, s in enumerate(subjects) if c.touches(s)], dtype=int)
                for c in self.constants
            ]
        return self._touched

    def _learn(self, slopes: AllSlopes, wanted: Bool[np.ndarray, " batch"]) -> None:
        """Forgets the rows whose kind no change of a constant moved."""
        kinds = labels_of([str(_kind(s)) for s in self.evidence.subjects])
        for j, touched in enumerate(self._touching()):
            moved = np.unique(kinds[np.abs(slopes[:, j]) > 0])
            unseen = np.setdiff1d(kinds, kinds[wanted])
            self._touched[j] = touched[np.isin(kinds[touched], np.union1d(moved, unseen))]


def _kind(subject: Subject) -> tuple[int, ...]:
    """Returns what decides together whether a constant can matter to a run."""
    layout = subject.layout
    degrees = (layout.tensor_parallel > 1, layout.pipeline_parallel > 1, layout.data_parallel > 1)
    return (id(subject.model), id(subject.stack), id(subject.cluster), *map(int, degrees))


def fit(
    surface: Surface, rows: Indices, *, start: Values | None = None, rounds: int = MAX_ROUNDS
) -> Fitted:
    """Returns the constants that some rows and the priors agree on best.

    Every round replaces the model by its tangent and finds the best constants for that, not too
    far away; a round that makes the misfit worse is repeated with smaller steps. Constants whose
    prior has no width keep its value. `start` is where to begin.
    """
    problem = Problem.of(surface, rows)
    values = prior_values(surface.constants) if start is None else start
    logs = problem.inside(_logs(values))
    reach, cost = LONGEST_STEP, np.inf
    for _ in range(rounds):
        tangent = problem.tangent(logs)
        cost = problem.cost(tangent.misfits, logs)
        moved = problem.best(tangent, reach)
        after = problem.cost(surface.misfits(moved, rows), moved)
        surface.note(f"misfit {cost:.2f} -> {after:.2f}")
        if after < cost:
            logs = moved
        else:
            reach *= SHORTENED
        if 0.0 <= cost - after < TOLERANCE * cost:
            break
    tangent = problem.tangent(logs)
    return Fitted(surface.constants, problem.values(logs), problem.determined(tangent))


def labels_of(names: Sequence[str]) -> Indices:
    """Returns one number for each distinct name."""
    return np.unique(np.array(names), return_inverse=True)[1].ravel()


def refit(surface: Surface, rows: Indices, found: Fitted) -> Fitted:
    """Returns the fit of fewer rows, by the tangent where the fit of all rows ended."""
    problem = Problem.of(surface, rows)
    tangent = problem.tangent(problem.inside(_logs(found.values)))
    values = problem.values(problem.best(tangent, LONGEST_STEP))
    return Fitted(surface.constants, values, problem.determined(tangent))


def values_of(constants: Sequence[LibraryConstant], logs: Logs) -> Values:
    """Returns constants from their logarithms; those that are not fitted exactly as stated."""
    fitted = np.array([constant.prior.sigma > 0 for constant in constants], dtype=bool)
    return np.where(fitted, np.exp(logs), prior_values(constants))


def _logs(values: Values) -> Logs:
    return np.log(np.maximum(values, TINY))  # a constant that is not fitted may be 0


@dataclass(frozen=True, eq=False)
class Tangent:
    """The model near one point: misfits and how they change with the constants' logarithms."""

    logs: Logs
    misfits: Misfits
    jacobian: Jacobian


@dataclass(frozen=True, eq=False)
class Problem:
    """Some rows and the priors of all constants, as one function to be made small."""

    surface: Surface
    rows: Indices
    weight: Misfits
    centre: Logs
    sigma: Logs
    low: Logs
    high: Logs

    @staticmethod
    def of(surface: Surface, rows: Indices) -> Problem:
        """Returns the problem of some rows of a surface."""
        priors = [constant.prior for constant in surface.constants]
        centre = _logs(np.array([p.value for p in priors]))
        return Problem(
            surface=surface,
            rows=rows,
            weight=surface.evidence.weight[rows],
            centre=centre,
            sigma=np.array([p.sigma for p in priors]),
            low=np.array([np.log(p.low) if p.low and p.sigma else -np.inf for p in priors]),
            high=np.array([np.log(p.high) if p.high and p.sigma else np.inf for p in priors]),
        )

    @property
    def free(self) -> Indices:
        """Returns which constants are fitted."""
        return np.flatnonzero(self.sigma > 0)

    def inside(self, logs: Logs) -> Logs:
        """Returns the nearest point within the bounds."""
        return np.where(self.sigma > 0, np.clip(logs, self.low, self.high), self.centre)

    def values(self, logs: Logs) -> Values:
        """Returns the constants themselves."""
        return values_of(self.surface.constants, logs)

    def tangent(self, logs: Logs) -> Tangent:
        """Returns the model near a point."""
        misfits, jacobian = self.surface.tangent(logs, self.rows)
        return Tangent(logs, misfits, jacobian)

    def cost(self, misfits: Misfits, logs: Logs) -> float:
        """Returns the robust misfit of the rows and the squared distance from the priors."""
        free = self.free
        distance = (logs - self.centre)[free] / self.sigma[free]
        return float(np.sum(self.weight * _robust(misfits)) + np.sum(distance**2))

    def best(self, tangent: Tangent, reach: float) -> Logs:
        """Returns where the tangent's misfit is least, within `reach` of its point."""
        free = self.free
        if not free.size:
            return tangent.logs
        root = np.sqrt(self.weight)
        slopes = np.vstack(
            [root[:, None] * tangent.jacobian[:, free], np.diag(1 / self.sigma[free])]
        )
        here = np.concatenate(
            [root * tangent.misfits, (tangent.logs - self.centre)[free] / self.sigma[free]]
        )
        low = np.maximum(self.low[free] - tangent.logs[free], -reach) - EDGE
        high = np.minimum(self.high[free] - tangent.logs[free], reach) + EDGE
        step = np.zeros(len(free))
        for width in WIDTHS:
            step = least_squares(
                lambda step: here + slopes @ step,
                step,
                jac=lambda _: slopes,
                bounds=(low, high),
                loss=partial(self._loss, usual=width * USUAL),
                x_scale=self.sigma[free],
                ftol=INNER_TOLERANCE,
                xtol=INNER_TOLERANCE,
                max_nfev=INNER_EVALUATIONS,
            ).x
        logs = tangent.logs.copy()
        logs[free] += step
        return self.inside(logs)

    def determined(self, tangent: Tangent) -> Float[np.ndarray, " quantities"]:
        """Returns by how much the rows narrow each prior: 1 - posterior over prior variance."""
        free = self.free
        share = np.zeros(len(self.sigma))
        influence = self.weight * _sharpness(tangent.misfits**2, USUAL)
        slopes = tangent.jacobian[:, free]
        information = (slopes * influence[:, None]).T @ slopes + np.diag(self.sigma[free] ** -2)
        variance = np.diag(np.linalg.inv(information))
        share[free] = np.clip(1.0 - variance / self.sigma[free] ** 2, 0.0, 1.0)
        return share

    def _loss(self, squared: Misfits, usual: float) -> Float[np.ndarray, "3 samples"]:
        """Returns the loss of squared residuals, rows before priors, with two derivatives."""
        rho = np.stack([squared, np.ones_like(squared), np.zeros_like(squared)])
        count = len(self.rows)
        own = squared[:count] / self.weight
        sharp = _sharpness(own, usual)
        rho[0, :count] = self.weight * own * np.sqrt(sharp)
        rho[1, :count] = sharp
        rho[2, :count] = -2.0 * sharp**1.5 / self.weight / usual**2
        return rho


def _robust(misfits: Misfits) -> Misfits:
    """Returns the loss of misfits (Geman and McClure 1987): squared when small, bounded when large.

    So a sick cluster, many times slower than it should be, cannot bend the model.
    """
    return misfits**2 * np.sqrt(_sharpness(misfits**2, USUAL))


def _sharpness(squared: Misfits, usual: float) -> Misfits:
    """Returns the derivative of that loss by the squared misfit: how much a run still counts."""
    return (1.0 + squared / usual**2) ** -2
