"""Experiments: layouts of one model on one cluster, ranked by prediction and by measurement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.metrics import MIN_RANKED, spearman
from apss_jax.planning.memory_risk import FITS_BELOW
from apss_jax.schema.runs import Run
from apss_jax.schema.validation import ExperimentAccuracy

TOP = 3  # picks of which a person might try every one
Indices = Int[np.ndarray, " batch"]
PerRun = Float[np.ndarray, " batch"]


class ExperimentKey(NamedTuple):
    """What the runs of one experiment share."""

    source: str
    table: str | None
    model: str | None
    num_gpus: int | None
    seq_len: int | None


class Picks(NamedTuple):
    """What a search would have chosen, and what that would have cost."""

    regret_percent: float | None
    top3_regret_percent: float | None
    failed: bool


def experiment_key(run: Run) -> ExperimentKey:
    """Returns the experiment that a run belongs to."""
    return ExperimentKey(run.source_name, run.table, run.model_name, run.num_gpus, run.seq_len)


def experiments_of(comparison: Comparison) -> tuple[ExperimentAccuracy, ...]:
    """Returns the accuracy within each experiment, in the order of the sources."""
    members: dict[ExperimentKey, list[int]] = {}
    for i, subject in enumerate(comparison.subjects):
        members.setdefault(experiment_key(subject.run), []).append(i)
    ordered = sorted(members.items(), key=lambda item: item[0].source)  # stable within a source
    return tuple(_accuracy(key, np.array(rows), comparison) for key, rows in ordered)


def _accuracy(key: ExperimentKey, rows: Indices, comparison: Comparison) -> ExperimentAccuracy:
    # Batches may differ within an experiment; per sequence, layouts remain comparable.
    batch = comparison.global_batch[rows]
    measured_s = comparison.step_time_s[rows] / batch
    predicted_s = comparison.predicted.step_time_s[rows] / batch
    failed = comparison.ran_out[rows] == 1
    fits = comparison.predicted.oom_probability[rows] < FITS_BELOW
    timed = comparison.is_timed[rows]
    picks = picked(measured_s, predicted_s, failed, fits)
    return ExperimentAccuracy(
        **key._asdict(),
        rows=len(rows),
        spearman=spearman(predicted_s[timed], measured_s[timed]),
        regret_percent=picks.regret_percent,
        top3_regret_percent=picks.top3_regret_percent,
        picked_failed=picks.failed,
    )


def picked(
    measured_s: PerRun,
    predicted_s: PerRun,
    failed: Bool[np.ndarray, " batch"],
    fits: Bool[np.ndarray, " batch"],
) -> Picks:
    """Returns the picks among layouts whose outcome is known: measured, or failed.

    `fits` is the prediction that the memory suffices. NaN: not measured.
    """
    known = np.isfinite(measured_s) | failed
    candidates = np.flatnonzero(known & fits)
    if known.sum() < MIN_RANKED or not len(candidates) or not np.isfinite(measured_s).any():
        return Picks(None, None, False)
    order = candidates[np.argsort(predicted_s[candidates], kind="stable")][:TOP]
    outcomes_s = np.where(failed[order], np.nan, measured_s[order])
    best_s = np.nanmin(measured_s)
    return Picks(
        regret_percent=_regret_percent(outcomes_s[:1], best_s),
        top3_regret_percent=_regret_percent(outcomes_s, best_s),
        failed=bool(failed[order[0]]),
    )


def _regret_percent(outcomes_s: PerRun, best_s: float) -> float | None:
    ran = outcomes_s[np.isfinite(outcomes_s)]
    return 100.0 * (float(ran.min()) / float(best_s) - 1.0) if len(ran) else None
