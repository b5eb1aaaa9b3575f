"""A trial as people read it: measured and predicted times of each plan, and of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from apss_jax.cli.tables import new_table, print_list
from apss_jax.report.figures import duration, percent
from apss_jax.schema.trial import PlanTrial, Trial

if TYPE_CHECKING:
    from rich.console import Console


def show_trial(trial: Trial, console: Console) -> None:
    """Prints a trial."""
    where = "emulated stages" if trial.emulated else trial.platform
    console.print(f"Best: plan {trial.best}, on {where}", style="bold")
    if trial.predicted_best != trial.best:
        console.print(f"Predicted best: plan {trial.predicted_best}")
    console.print()
    console.print(_plan_table(trial))
    for plan in trial.plans:
        console.print()
        console.print(_stage_table(plan))
    print_list(console, "Assumed", trial.assumptions)
    print_list(console, "Warnings", trial.warnings)


def _plan_table(trial: Trial) -> Table:
    table = new_table(
        "A step, and by how much the prediction is off",
        ("plan",),
        ("measured", "predicted", "schedule", "profile", "total"),
    )
    for plan in trial.plans:
        table.add_row(
            str(plan.rank),
            duration(plan.measured_step_s),
            duration(plan.predicted_step_s),
            _signed(plan.schedule_error_fraction),
            _signed(plan.profile_error_fraction),
            _signed(plan.total_error_fraction),
        )
    return table


def _stage_table(plan: PlanTrial) -> Table:
    table = new_table(
        f"Plan {plan.rank}: one micro-batch in the step, and alone",
        ("stage",),
        ("layers", "forward", "alone", "backward", "alone", "message", "processor"),
    )
    for number, stage in enumerate(plan.stages):
        table.add_row(
            str(number),
            str(stage.num_layers),
            duration(stage.forward_s),
            duration(stage.solo_forward_s),
            duration(stage.backward_s),
            duration(stage.solo_backward_s),
            duration(stage.transfer_s),
            percent(stage.processor_fraction),
        )
    return table


def _signed(fraction: float) -> str:
    return f"{100 * fraction:+.1f} %"
