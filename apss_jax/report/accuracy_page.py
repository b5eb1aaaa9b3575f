"""The page that says how close predictions come, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from apss_jax.planning.memory_risk import FITS_BELOW
from apss_jax.report.accuracy_rows import (
    MIN_ROWS,
    experiment_summaries,
    figure,
    oom_rates,
    percent,
    plain,
)
from apss_jax.schema.references import Contradiction
from apss_jax.schema.validation import ExperimentAccuracy, HeldOut, SourceAccuracy, Validation

MIN_CLAIMED: Final = 20  # rows of a source below which its figures are reported, not claimed

INTRODUCTION: Final = """\
Predicted against measured, on published runs. *MAPE* is the mean absolute error in percent of the
measurement, *median* the median one, *rho* Spearman's rank correlation, *inside* the share of
measurements within the 80 % interval. All rows count. Sources with fewer than {few} measured rows
(in italics) are reported, not claimed. *generic* is the same with each source's software stack
replaced by the one for unlisted frameworks, whose interval is wider."""

HELD_OUT: Final = """\
Each experiment (one model, cluster size and sequence length of one source) is predicted by
constants that were fitted without it, in four folds; *generic* by the stack for unlisted frameworks
fitted without the run's whole framework. Written by `make fit` beside the constants."""
OUT_OF_MEMORY: Final = """\
Counts of runs that ran out of memory or did not; the verdict is a probability of 0.5."""
CHOICES: Final = """\
The pick is the fastest predicted layout that is predicted to fit (a probability below {limit:g} to
run out); regret is how much slower it was than the best measured one. *Failed* picks ran out of
memory or crashed: they have no regret and are counted apart, while the best of three counts those
of three picks that ran. Experiments with at least {few} predicted rows."""
NOT_COMPARED: Final = """\
A run is compared where the table gives its step time, tokens per second, or operations per second
beside the formula that counted them; or its peak memory; or whether it ran out."""
CONTRADICTIONS: Final = """\
These runs count in every figure above, though something about them cannot be right."""


@dataclass(frozen=True)
class PageInputs:
    """What a page is made of."""

    validation: Validation
    generic: Validation
    command: str
    date: str
    parts: Sequence[SourceAccuracy] = ()  # beside whole sources
    generic_parts: Sequence[SourceAccuracy] = ()
    held_out: HeldOut | None = None  # where the runs are those that the constants were fitted on
    contradictions: Sequence[tuple[Contradiction, str]] = ()  # with what was measured and predicted


def accuracy_page(inputs: PageInputs) -> str:
    """Returns the page."""
    sources = inputs.validation.sources
    parts = [
        "# Accuracy",
        INTRODUCTION.format(few=MIN_CLAIMED),
        f"Written on {inputs.date} by `{inputs.command}`.",
        "## Step time",
        _table(
            _time_rows([*sources, *inputs.parts], [*inputs.generic.sources, *inputs.generic_parts])
        ),
        *(_held_out_parts(inputs.held_out) if inputs.held_out else ()),
        "## Memory",
        _table(_memory_rows(sources)),
        "## Out of memory",
        OUT_OF_MEMORY,
        _table(_oom_rows(sources)),
        "## Choosing among measured layouts",
        CHOICES.format(limit=FITS_BELOW, few=MIN_ROWS),
        _table(_experiment_rows(inputs.validation.experiments)),
        *_contradiction_parts(inputs.contradictions),
        "## What was assumed and skipped",
        NOT_COMPARED,
        "\n".join(_remarks(sources)),
    ]
    return "\n\n".join(parts) + "\n"


def _held_out_parts(found: HeldOut) -> Iterator[str]:
    yield "## Runs that the constants were not fitted on"
    yield HELD_OUT
    yield _table(_time_rows([*found.sources, *found.parts], [*found.generic, *found.generic_parts]))
    yield "Their peak memory:"
    yield _table(_memory_rows([*found.sources, *found.parts]))
    yield "Who of them ran out of memory:"
    yield _table(_oom_rows(found.sources))
    yield "Choosing among their layouts:"
    yield _table(_experiment_rows(found.experiments))


def _contradiction_parts(found: Sequence[tuple[Contradiction, str]]) -> Iterator[str]:
    if found:
        yield "## Runs that cannot be right"
        yield CONTRADICTIONS
        yield "\n".join(f"- {', '.join(c.runs)} ({figures}): {c.reason}" for c, figures in found)


def _table(rows: Iterator[Sequence[str]]) -> str:
    found = list(rows)
    rule = ["---", *["---:"] * (len(found[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [found[0], rule, *found[1:]])


def _time_rows(
    sources: Sequence[SourceAccuracy], generic: Sequence[SourceAccuracy]
) -> Iterator[Sequence[str]]:
    own = ("source", "rows", "MAPE %", "median %", "rho", "inside %")
    yield (*own, "generic MAPE %", "median %", "inside %")
    other = {each.source: each.step_time for each in generic}
    for each in sources:
        time, plain_time = each.step_time, other[each.source]
        if time.rows:
            yield (
                _name(each.source, time.rows),
                str(time.rows),
                percent(time.mape_percent),
                percent(time.median_ape_percent),
                figure(time.spearman),
                percent(time.interval_coverage_percent),
                percent(plain_time.mape_percent),
                percent(plain_time.median_ape_percent),
                percent(plain_time.interval_coverage_percent),
            )


def _memory_rows(sources: Sequence[SourceAccuracy]) -> Iterator[Sequence[str]]:
    yield ("source", "rows", "MAPE %", "median %")
    for each in sources:
        memory = each.memory
        if memory.rows:
            yield (
                _name(each.source, memory.rows),
                str(memory.rows),
                percent(memory.mape_percent),
                percent(memory.median_ape_percent),
            )


def _oom_rows(sources: Sequence[SourceAccuracy]) -> Iterator[Sequence[str]]:
    counts = ("source", "ran out, said so", "not said", "fits, said so", "alarm")
    yield (*counts, "accuracy", "precision", "recall")
    for each in sources:
        oom, rates = each.oom, oom_rates(each.oom)
        if oom.true_positive + oom.false_negative:
            yield (
                each.source,
                str(oom.true_positive),
                str(oom.false_negative),
                str(oom.true_negative),
                str(oom.false_positive),
                figure(rates.accuracy),
                figure(rates.precision),
                figure(rates.recall),
            )


def _experiment_rows(experiments: Sequence[ExperimentAccuracy]) -> Iterator[Sequence[str]]:
    yield (
        "source",
        "experiments",
        "mean rho",
        "mean regret %",
        "median %",
        "best of 3 %",
        "failed",
    )
    for each in experiment_summaries(experiments):
        yield (
            each.source,
            str(each.count),
            figure(each.spearman),
            percent(each.mean_regret_percent),
            percent(each.median_regret_percent),
            percent(each.mean_top3_regret_percent),
            str(each.failed_picks),
        )


def _remarks(sources: Sequence[SourceAccuracy]) -> Iterator[str]:
    for each in sources:
        assumed = plain(each.assumed) or "nothing"
        skipped = f"; skipped: {plain(each.skipped)}" if each.skipped else ""
        timed = f"{each.step_time.rows} with a step time"
        counts = f"{each.predicted} of {each.rows} rows, {timed}"
        yield f"- {each.source} ({counts}): assumed {assumed}{skipped}."


def _name(source: str, rows: int) -> str:
    return source if rows >= MIN_CLAIMED else f"*{source}*"
