"""An estimate as people read it: the verdict first, then stages and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table

from apss_jax.cli.tables import (
    breakdown_table,
    labelled,
    layout_lines,
    new_table,
    print_list,
    stage_table,
    workload_line,
)
from apss_jax.report.figures import count, duration, gib, interval, percent, significant
from apss_jax.report.plan_words import (
    headline,
    heaviest,
    occupancy,
)
from apss_jax.schema.plan import Alternative, Estimate, Plan, WhatIf

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.model import Model

SAME_SPEED: Final = 0.005  # difference below which a plan is called as fast


def show_estimate(
    estimate: Estimate, model: Model, cluster: ClusterProfile, console: Console
) -> None:
    """Prints an estimate."""
    plan = estimate.plan
    console.print(headline(model, cluster), style="bold")
    console.print(workload_line(plan))
    for line in layout_lines(plan):
        console.print(line)
    console.print()
    for label, text in verdict(estimate):
        console.print(labelled(f"{label:5}", text))
    if any(stage.memory_bytes or stage.forward_s for stage in plan.stages):
        console.print()
        console.print(stage_table(plan, "Stages, one micro-batch"))
    if plan.cost:
        console.print()
        console.print(breakdown_table(plan))
    if estimate.what_if:
        _show_what_if(estimate.what_if, console)
    print_list(console, "Remarks", plan.explanation)
    print_list(console, "Assumed", estimate.assumptions)
    print_list(console, "Warnings", estimate.warnings)


def _show_what_if(found: WhatIf, console: Console) -> None:
    """Prints the best plan, and what would make this one legal and fit."""
    console.print()
    if found.best is not None:
        console.print(labelled("Best ", _gain(found.best)))
    if found.changes:
        console.print(_changes_table(found.changes))
    elif found.best is None:
        console.print(labelled("Best ", "no plan was found that is legal and fits"))


def _gain(best: Alternative) -> str:
    took = f"{duration(best.step_time_s)} per step with {best.change}"
    if best.speedup is None:
        return took
    if abs(best.speedup - 1) < SAME_SPEED:
        return f"{took}: as fast as this one"
    return f"{took}: {significant(best.speedup)} times as fast as this one"


def _changes_table(changes: Sequence[Alternative]) -> Table:
    table = new_table(
        "Smallest changes that are legal and fit", ("change",), ("step", "speed", "GiB", "P(OOM)")
    )
    for each in changes:
        speed = "-" if each.speedup is None else f"{significant(each.speedup)}x"
        memory = gib(each.memory_bytes)
        chance = percent(each.oom_probability)
        table.add_row(each.change, duration(each.step_time_s), speed, memory, chance)
    return table


def verdict(estimate: Estimate) -> list[tuple[str, str]]:
    """Returns the answers to: is it legal, does it fit, how fast is it; each with its label."""
    broken = [("", f"{each.rule}: {each.message}") for each in estimate.violations]
    legal = "yes" if estimate.legal else "no"
    return [("Legal", legal), *broken, ("Fits", _fit(estimate.plan)), *_speed(estimate.plan)]


def _fit(plan: Plan) -> str:
    full = heaviest(plan)
    if full is None:
        return "not known"
    index, stage = full
    fits = all(each.fits is not False for each in plan.stages)
    return (
        f"{'yes' if fits else 'no'}: stage {index} is the fullest, {occupancy(stage.memory_bytes)} "
        f"GiB, P(OOM) {percent(stage.oom_probability)}"
    )


def _speed(plan: Plan) -> list[tuple[str, str]]:
    cost = plan.cost
    if cost is None:
        return [("Speed", "not known")]
    between = interval(cost.step_time_low_s, cost.step_time_high_s)
    return [
        ("Speed", f"{duration(cost.step_time_s)} per step, 80 % interval {between}"),
        (
            "",
            f"{count(cost.tokens_per_s)} tokens/s, MFU {percent(cost.mfu_fraction)}, "
            f"bubble {percent(cost.bubble_fraction)}",
        ),
    ]
