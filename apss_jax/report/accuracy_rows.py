"""Figures of a validation as short texts, and summaries over experiments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from apss_jax.schema.validation import ExperimentAccuracy, OomVerdicts

UNKNOWN: Final = "-"
MIN_ROWS: Final = 5  # of an experiment that a summary counts


@dataclass(frozen=True)
class ExperimentSummary:
    """The experiments of one source together."""

    source: str
    count: int
    spearman: float | None
    mean_regret_percent: float | None
    median_regret_percent: float | None
    mean_top3_regret_percent: float | None
    failed_picks: int


@dataclass(frozen=True)
class OomRates:
    """Shares of a table of verdicts; None where nothing is counted."""

    accuracy: float | None
    precision: float | None
    recall: float | None


def experiment_summaries(
    experiments: Iterable[ExperimentAccuracy],
) -> tuple[ExperimentSummary, ...]:
    """Returns one summary for each source that has experiments of some size."""
    by_source: dict[str, list[ExperimentAccuracy]] = {}
    for each in experiments:
        if each.rows >= MIN_ROWS and (each.regret_percent is not None or each.spearman is not None):
            by_source.setdefault(each.source, []).append(each)
    return tuple(_summary(source, found) for source, found in by_source.items())


def _summary(source: str, found: Sequence[ExperimentAccuracy]) -> ExperimentSummary:
    regrets = _known(each.regret_percent for each in found)
    return ExperimentSummary(
        source=source,
        count=len(found),
        spearman=_mean(_known(each.spearman for each in found)),
        mean_regret_percent=_mean(regrets),
        median_regret_percent=median(regrets) if regrets else None,
        mean_top3_regret_percent=_mean(_known(each.top3_regret_percent for each in found)),
        failed_picks=sum(each.picked_failed for each in found),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def oom_rates(verdicts: OomVerdicts) -> OomRates:
    """Returns accuracy, precision and recall."""
    right = verdicts.true_positive + verdicts.true_negative
    alarms = verdicts.true_positive + verdicts.false_positive
    cases = verdicts.true_positive + verdicts.false_negative
    everything = right + verdicts.false_positive + verdicts.false_negative
    return OomRates(
        accuracy=right / everything if everything else None,
        precision=verdicts.true_positive / alarms if alarms else None,
        recall=verdicts.true_positive / cases if cases else None,
    )


def percent(value: float | None) -> str:
    """Returns a percentage with one decimal, '-' for what is not known."""
    return UNKNOWN if value is None else f"{value:.1f}"


def figure(value: float | None) -> str:
    """Returns a share or a correlation with three decimals, '-' for what is not known."""
    return UNKNOWN if value is None else f"{value:.3f}"


def plain(counts: Mapping[str, int]) -> str:
    """Returns counts as 'name (n), ...', the largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} ({count})" for name, count in ordered)
