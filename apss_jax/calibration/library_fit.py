"""All constants of the library from measured runs, and how far off they are on runs left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped

from apss_jax.calibration.evidence import (
    memory_evidence,
    source_weights,
    step_time_evidence,
    thinned,
)
from apss_jax.calibration.fit import Fitted, NoteFn, Surface, fit, labels_of
from apss_jax.calibration.folds import (
    experiment_folds,
    held_out_figures,
    left_out_reaches,
)
from apss_jax.calibration.intervals import (
    FEW_ROWS,
    excess_fraction,
    interval_error,
    label_error,
    normal_error,
)
from apss_jax.calibration.library_constants import (
    FALLBACK,
    LibraryConstant,
    Values,
    constants_of,
    with_values,
)
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.pairs import Groups, device_errors, kinds_of
from apss_jax.calibration.pooled import equal_votes, figures_without_own, pooled
from apss_jax.calibration.prediction import Figures, predict_runs
from apss_jax.calibration.subject import SkippedRun
from apss_jax.calibration.widths import Misses, Width, fit_widths
from apss_jax.importers.clusters import load_stack
from apss_jax.planning.uncertainty import Reach
from apss_jax.schema.priors import Priors
from apss_jax.schema.runs import Run

Indices = Int[np.ndarray, " samples"]
PerRun = Float[np.ndarray, " samples"]
Names = Shaped[np.ndarray, " samples"]
Fits = list[tuple[Surface, Indices, Fitted]]
"""For each quantity its surface, the rows that were fitted, and what was found on them."""

Errors = dict[str, dict[str, Any]]
"""By stack: the error fractions that its file states, and those by device types."""


@dataclass(frozen=True, eq=False)
class Fit:
    """One fit of both quantities, with what each run is predicted when it is left out."""

    comparison: Comparison  # its predictions are those of the constants that were shipped
    step_time: Fitted
    memory: Fitted
    held_out: Figures
    reaches: tuple[Reach, ...]  # from the runs that a left-out run was predicted with
    voters: Names | None = None  # whose runs tell of errors together; None: each its own

    @property
    def constants(self) -> list[LibraryConstant]:
        """Returns the constants of both quantities."""
        return [*self.step_time.constants, *self.memory.constants]

    @property
    def values(self) -> Values:
        """Returns their values."""
        return np.concatenate([self.step_time.values, self.memory.values])

    def misses(self, rows: Indices) -> Misses:
        """Returns how far off the step times of some runs were."""
        measured_s = self.comparison.step_time_s[rows]
        log_error = np.log(measured_s / self.held_out.step_time_s[rows])
        votes = None if self.voters is None else labels_of(self.voters[rows].tolist())
        return Misses.of(log_error, self.weights(rows), [self.reaches[i] for i in rows], votes)

    def weights(self, rows: Indices) -> PerRun:
        """Returns what some runs' errors count: all voters alike, or sources as their roots."""
        if self.voters is not None:
            return equal_votes(self.voters[rows])
        subjects = self.comparison.subjects
        return source_weights([subject.run.source_name for subject in subjects])[rows]


@dataclass(frozen=True, eq=False)
class LibraryFit:
    """The constants of every stack, device and link; of the stack for unlisted frameworks apart."""

    own: Fit
    generic: Fit  # every run under the generic stack; left out: the run's own framework
    errors: Errors
    skipped: tuple[SkippedRun, ...]


def fit_library(runs: Sequence[Run], priors: Priors, note: NoteFn) -> LibraryFit:
    """Returns the constants that runs and priors agree on best."""
    predictions = predict_runs(runs)
    comparison = Comparison.of(predictions)
    note("constants of each stack, device and link")
    fits = _fits(comparison, priors, note)
    note("each fold by constants fitted without it")
    own = _fit(comparison, fits)
    note("constants of the generic stack, and each framework by those fitted without it")
    generic = _pooled_fit(runs, own, fits)
    return LibraryFit(own, generic, _errors(own, generic, priors.groups), predictions.skipped)


def _fits(comparison: Comparison, priors: Priors, note: NoteFn) -> Fits:
    """Returns what the runs as they stand say of each quantity."""
    names = {subject.stack.name for subject in comparison.subjects}
    found: Fits = []
    for each in (
        step_time_evidence(comparison),
        memory_evidence(comparison, priors.label_sources),
    ):
        constants = constants_of(getattr(priors, each.quantity), priors.groups, names)
        surface, rows = Surface(each, tuple(constants), note), thinned(each)
        found.append((surface, rows, fit(surface, rows)))
    return found


def _fit(comparison: Comparison, fits: Fits) -> Fit:
    """Returns the fit of runs as they stand, and each fold's figures by a fit without it."""
    folds = experiment_folds(comparison.subjects)
    fold_of = {id(s): int(f) for s, f in zip(comparison.subjects, folds, strict=True)}
    with_folds = [
        (*each, np.array([fold_of[id(s)] for s in each[0].evidence.subjects], dtype=int))
        for each in fits
    ]
    stacks = [subject.stack.name for subject in comparison.subjects]
    return Fit(
        comparison=comparison,
        step_time=fits[0][2],
        memory=fits[1][2],
        held_out=held_out_figures(comparison.subjects, folds, with_folds),
        reaches=left_out_reaches(comparison.subjects, folds, stacks),
    )


def _pooled_fit(runs: Sequence[Run], own: Fit, fits: Fits) -> Fit:
    """Returns the generic stack under all runs; left out is all that a run's framework says."""
    predictions = predict_runs(runs, stack=load_stack(FALLBACK))
    subjects = tuple(with_values(predictions.subjects, own.constants, own.values))
    frameworks = [subject.framework.stack for subject in subjects]
    return Fit(
        comparison=Comparison.of(replace(predictions, subjects=subjects)),
        step_time=pooled(own.step_time),
        memory=pooled(own.memory),
        held_out=figures_without_own(subjects, fits),
        reaches=left_out_reaches(subjects, labels_of(frameworks), [FALLBACK] * len(subjects)),
        voters=np.array(frameworks),
    )


def _errors(own: Fit, generic: Fit, groups: Groups) -> Errors:
    """Returns the error fractions of every stack, from runs that were left out."""
    errors: Errors = {}
    for fitted in (own, generic):
        names = np.array([s.stack.name for s in fitted.comparison.subjects])
        for name, fields in _time_errors(fitted, names, groups).items():
            rows = np.flatnonzero(names == name)
            errors[name] = {**fields, "memory_error_fraction": _memory_error(fitted, rows)}
    # An unlisted framework is as far off as others are, on devices of which hardly two are known.
    errors[FALLBACK]["device_errors"] = ()
    # A framework that is left out is new, its sizes hardly ever are: others tell what those add.
    errors[FALLBACK]["far_error_fraction"] = max(e["far_error_fraction"] for e in errors.values())
    return errors


def _time_errors(fitted: Fit, names: Names, groups: Groups) -> Errors:
    """Returns the error fractions of step times, by stack.

    Runs of layers that were measured one by one tell of those alone.
    """
    comparison = fitted.comparison
    is_measured = fitted.held_out.measured_fraction > 0.5
    analytic = np.flatnonzero(comparison.is_timed & ~is_measured)
    misses = fitted.misses(analytic)
    # An unlisted framework has one width on all devices, of which hardly two are known.
    is_one = fitted.voters is not None
    kinds = None if is_one else kinds_of([comparison.subjects[i] for i in analytic], groups)
    widths = fit_widths(misses, names[analytic].tolist(), kinds)
    errors: Errors = {name: _fractions(width) for name, width in widths.items()}
    for name, width in widths.items():
        rows = names[analytic] == name
        subjects = [comparison.subjects[i] for i in analytic[rows]]
        errors[name]["device_errors"] = device_errors(subjects, misses.chosen(rows), width, groups)
        own = fitted.misses(np.flatnonzero(comparison.is_timed & is_measured & (names == name)))
        if len(own.weight) >= FEW_ROWS:
            errors[name]["measured_error_fraction"] = interval_error(own.log_error, own.weight)
    return errors


def _fractions(width: Width) -> dict[str, float]:
    return {
        "step_time_error_fraction": math.expm1(width.base),
        "expert_error_fraction": math.expm1(width.expert),
        "domain_error_fraction": math.expm1(width.domain),
        "far_error_fraction": math.expm1(width.far),
    }


def _memory_error(found: Fit, rows: Indices) -> float:
    """Returns the error of memory, from measured figures if enough, else outcomes, else all."""
    comparison = found.comparison
    measured = rows[np.isfinite(comparison.memory_bytes[rows])]
    labelled = rows[comparison.ran_out[rows] >= 0]
    fewer = min((comparison.ran_out[labelled] == outcome).sum() for outcome in (0, 1))
    if len(measured) < FEW_ROWS <= fewer:
        return _outcome_error(found, labelled)
    if len(measured) < FEW_ROWS:
        measured = np.flatnonzero(np.isfinite(comparison.memory_bytes))
    ratio = comparison.memory_bytes[measured] / found.held_out.memory_bytes[measured]
    return normal_error(np.log(ratio), found.weights(measured))


def _outcome_error(found: Fit, rows: Indices) -> float:
    figures, subjects = found.held_out, found.comparison.subjects
    sigma = np.array([subjects[i].stack.memory_error_fraction for i in rows])
    excess = excess_fraction(figures.oom_probability[rows], sigma)
    return label_error(excess, found.comparison.ran_out[rows])
