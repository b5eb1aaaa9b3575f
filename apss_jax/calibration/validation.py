"""Predicted against measured, per source and per experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from apss_jax.calibration.experiments import experiments_of
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.metrics import (
    absolute_error_percent,
    mean,
    median,
    share_percent,
    spearman,
)
from apss_jax.calibration.parts import known_parts, rows_of
from apss_jax.calibration.prediction import Predictions, ProgressFn, predict_runs
from apss_jax.calibration.subject import SkippedRun
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Stack
from apss_jax.schema.validation import (
    MemoryAccuracy,
    OomVerdicts,
    SourceAccuracy,
    StepTimeAccuracy,
    Validation,
)

VERDICT_FROM = 0.5  # probability of running out from which a run is predicted to
Indices = Int[np.ndarray, " batch"]


@dataclass(frozen=True, eq=False)
class Validated:
    """The document, and the figures of single runs that a picture is drawn from."""

    document: Validation
    comparison: Comparison


def validate_runs(
    runs: Sequence[Run], *, stack: Stack | None = None, progress: ProgressFn | None = None
) -> Validated:
    """Returns how close the predictions of measured runs come.

    `stack` stands for every run's own; kernels that a run states stay.
    """
    return validation_of(predict_runs(runs, stack=stack, progress=progress))


def validation_of(predictions: Predictions) -> Validated:
    """Returns how close given predictions come."""
    comparison = Comparison.of(predictions)
    return Validated(validation_of_comparison(comparison, predictions.skipped), comparison)


def validation_of_comparison(comparison: Comparison, skipped: Sequence[SkippedRun]) -> Validation:
    """Returns how close predictions come, beside the runs that have none."""
    return Validation(sources=_sources(comparison, skipped), experiments=experiments_of(comparison))


def parts_of(comparison: Comparison) -> tuple[SourceAccuracy, ...]:
    """Returns the accuracy on those parts of the shipped table that have predicted runs."""
    found = [(part.name, rows_of(part, comparison)) for part in known_parts()]
    return tuple(_source(name, rows, [], comparison) for name, rows in found if len(rows))


def _sources(comparison: Comparison, skipped: Sequence[SkippedRun]) -> tuple[SourceAccuracy, ...]:
    names = np.array([subject.run.source_name for subject in comparison.subjects], dtype=object)
    dropped: dict[str, list[SkippedRun]] = {}
    for each in skipped:
        dropped.setdefault(each.run.source_name, []).append(each)
    found = sorted({*names.tolist(), *dropped})
    return tuple(
        _source(name, np.flatnonzero(names == name), dropped.get(name, []), comparison)
        for name in found
    )


def _source(
    name: str, rows: Indices, skipped: Sequence[SkippedRun], comparison: Comparison
) -> SourceAccuracy:
    assumed = Counter(field for i in rows for field in comparison.subjects[i].assumed)
    return SourceAccuracy(
        source=name,
        rows=len(rows) + len(skipped),
        predicted=len(rows),
        skipped=dict(sorted(Counter(each.reason for each in skipped).items())),
        assumed=dict(sorted(assumed.items())),
        step_time=_step_time(comparison, rows[comparison.is_timed[rows]]),
        memory=_memory(comparison, rows[np.isfinite(comparison.memory_bytes[rows])]),
        oom=_oom(comparison, rows),
    )


def _step_time(comparison: Comparison, rows: Indices) -> StepTimeAccuracy:
    predicted, measured_s = comparison.predicted, comparison.step_time_s[rows]
    predicted_s = predicted.step_time_s[rows]
    error = absolute_error_percent(predicted_s, measured_s)
    inside = (predicted.low_s[rows] <= measured_s) & (measured_s <= predicted.high_s[rows])
    return StepTimeAccuracy(
        rows=len(rows),
        mape_percent=mean(error),
        median_ape_percent=median(error),
        spearman=spearman(predicted_s, measured_s),
        interval_coverage_percent=share_percent(inside),
    )


def _memory(comparison: Comparison, rows: Indices) -> MemoryAccuracy:
    error = absolute_error_percent(
        comparison.predicted.memory_bytes[rows], comparison.memory_bytes[rows]
    )
    return MemoryAccuracy(
        rows=len(rows), mape_percent=mean(error), median_ape_percent=median(error)
    )


def _oom(comparison: Comparison, rows: Indices) -> OomVerdicts:
    ran_out = comparison.ran_out[rows]
    said = comparison.predicted.oom_probability[rows] >= VERDICT_FROM
    return OomVerdicts(
        true_positive=int((said & (ran_out == 1)).sum()),
        false_positive=int((said & (ran_out == 0)).sum()),
        true_negative=int((~said & (ran_out == 0)).sum()),
        false_negative=int((~said & (ran_out == 1)).sum()),
    )
