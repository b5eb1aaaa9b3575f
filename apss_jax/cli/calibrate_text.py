"""A calibration as people read it: what was learned, what was not, how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apss_jax.cli.tables import (
    new_table,
    print_list,
)
from apss_jax.report.figures import percent
from apss_jax.report.plan_words import (
    plural,
)
from apss_jax.schema.calibration import Calibration, FigureFit, OpenConstant

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def show_calibration(calibration: Calibration, console: Console) -> None:
    """Prints a calibration."""
    runs = f"{calibration.runs} {plural('run', calibration.runs)}"
    console.print(f"Stack {calibration.stack}, from {calibration.base} and {runs}", style="bold")
    console.print(_interval(calibration))
    for table in (_error_table(calibration), _fitted_table(calibration)):
        console.print()
        console.print(table)
    left = [_open(each) for each in calibration.not_determined]
    print_list(console, "Not determined by these runs, so left as they were", left)
    out = [f"{each.run}: {each.reason}" for each in calibration.left_out]
    print_list(console, "Left out", out)
    if calibration.file:
        print_list(console, "Use it", [f"--stack {calibration.file}"])


def _interval(calibration: Calibration) -> str:
    time = percent(calibration.step_time_error_fraction)
    memory = percent(calibration.memory_error_fraction)
    return f"80 % interval of step times: {time} either way; deviation of memory: {memory}"


def _error_table(calibration: Calibration) -> Table:
    table = new_table(
        "Mean error on these runs, in %", ("measured",), ("runs", "different", "before", "after")
    )
    rows = {"step time": calibration.step_time, "memory": calibration.memory}
    for name, fit in rows.items():
        table.add_row(name, *_error_cells(fit))
    return table


def _error_cells(fit: FigureFit) -> list[str]:
    errors = (fit.mean_error_before_percent, fit.mean_error_after_percent)
    shown = ["-" if error is None else f"{error:.1f}" for error in errors]
    return [str(fit.runs), str(fit.distinct), *shown]


def _fitted_table(calibration: Calibration) -> Table:
    table = new_table("Fitted", ("constant",), ("before", "after", "uncertainty left"))
    for each in calibration.fitted:
        left = percent(each.uncertainty_left_fraction)
        table.add_row(each.constant, f"{each.before:.4g}", f"{each.after:.4g}", left)
    return table


def _open(constant: OpenConstant) -> str:
    left = percent(constant.uncertainty_left_fraction)
    return f"{constant.constant} ({left} of its uncertainty left): {constant.needs}"
