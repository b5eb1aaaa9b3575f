"""An estimate as people read it: the verdict first, then stages and times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apss_jax.cli.figures import count, duration, interval, percent
from apss_jax.cli.tables import (
    breakdown_table,
    headline,
    heaviest,
    labelled,
    layout_lines,
    occupancy,
    print_list,
    stage_table,
    workload_line,
)
from apss_jax.schema.plan import Estimate, Plan

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.model import Model


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
    print_list(console, "Remarks", plan.explanation)
    print_list(console, "Assumed", estimate.assumptions)
    print_list(console, "Warnings", estimate.warnings)


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
