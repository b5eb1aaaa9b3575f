"""A validation as people read it: accuracy per source, verdicts, choices, what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from apss_jax.cli.tables import new_table, print_list
from apss_jax.report.accuracy_rows import (
    experiment_summaries,
    figure,
    oom_rates,
    percent,
    plain,
)
from apss_jax.schema.validation import SourceAccuracy, Validation

if TYPE_CHECKING:
    from rich.console import Console


def show_validation(validation: Validation, console: Console) -> None:
    """Prints a validation."""
    rows = sum(each.rows for each in validation.sources)
    predicted = sum(each.predicted for each in validation.sources)
    console.print(f"{predicted} of {rows} runs predicted", style="bold")
    for table in (
        _accuracy_table(validation),
        _oom_table(validation),
        _experiment_table(validation),
    ):
        if table.row_count:
            console.print()
            console.print(table)
    skipped = [_skipped(each) for each in validation.sources if each.skipped]
    print_list(console, "Skipped", skipped)
    assumed = [
        f"{each.source}: {plain(each.assumed)}" for each in validation.sources if each.assumed
    ]
    print_list(console, "Assumed, as the table does not say", assumed)


def _skipped(source: SourceAccuracy) -> str:
    return f"{source.source}: {plain(source.skipped)}"


def _accuracy_table(validation: Validation) -> Table:
    table = new_table(
        "Predicted against measured, error in %; rho: ranks; inside: of 80 %",
        ("source",),
        ("times", "mean", "median", "rho", "inside", "memory", "mean", "median"),
    )
    for each in validation.sources:
        time, memory = each.step_time, each.memory
        if time.rows or memory.rows:
            table.add_row(
                each.source,
                str(time.rows),
                percent(time.mape_percent),
                percent(time.median_ape_percent),
                figure(time.spearman),
                percent(time.interval_coverage_percent),
                str(memory.rows),
                percent(memory.mape_percent),
                percent(memory.median_ape_percent),
            )
    return table


def _oom_table(validation: Validation) -> Table:
    table = new_table(
        "Out of memory: said and true",
        ("source",),
        ("runs", "failed", "right", "precision", "recall"),
    )
    for each in validation.sources:
        oom = each.oom
        failed = oom.true_positive + oom.false_negative
        if failed:
            rates = oom_rates(oom)
            table.add_row(
                each.source,
                str(failed + oom.true_negative + oom.false_positive),
                str(failed),
                figure(rates.accuracy),
                figure(rates.precision),
                figure(rates.recall),
            )
    return table


def _experiment_table(validation: Validation) -> Table:
    table = new_table(
        "First choice against the best measured layout",
        ("source",),
        ("experiments", "rho", "regret %", "median", "best of 3", "failed"),
    )
    for each in experiment_summaries(validation.experiments):
        table.add_row(
            each.source,
            str(each.count),
            figure(each.spearman),
            percent(each.mean_regret_percent),
            percent(each.median_regret_percent),
            percent(each.mean_top3_regret_percent),
            str(each.failed_picks),
        )
    return table
