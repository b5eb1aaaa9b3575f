"""A search result as people read it: ranking, the first plan, reasons, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from apss_jax.cli.tables import (
    breakdown_table,
    new_table,
    print_list,
    stage_table,
    workload_line,
)
from apss_jax.report.figures import UNKNOWN, count, duration, interval, percent
from apss_jax.report.plan_words import (
    REASONS,
    headline,
    heaviest,
    layers_per_stage,
    occupancy,
    plural,
    worst_oom,
)
from apss_jax.schema.plan import Cost, Plan, SearchCounts, SearchResult, Shortfall
from apss_jax.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.model import Model


def show_search(
    result: SearchResult, model: Model, cluster: ClusterProfile, console: Console
) -> None:
    """Prints a search result."""
    console.print(headline(model, cluster), style="bold")
    if result.plans:
        _show_plans(result, console)
    print_list(console, "Search", _count_lines(result.search))
    if any(result.search.dropped.values()):
        console.print(_dropped_table(result.search))
    if result.shortfall:
        print_list(console, "No plan fits", _shortfall_lines(result.shortfall))
    print_list(console, "Assumed", result.assumptions)
    print_list(console, "Warnings", result.warnings)


def _show_plans(result: SearchResult, console: Console) -> None:
    first = result.plans[0]
    console.print(workload_line(first))
    parts = (
        _layout_table(result.plans),
        _prediction_table(result.plans),
        stage_table(first, "Stages of plan 1, one micro-batch"),
        breakdown_table(first),
    )
    for part in parts:
        console.print()
        console.print(part)
    print_list(console, "Why plan 1", first.explanation)
    for plan in result.plans[1:]:
        print_list(console, f"Why plan {plan.rank} is not first", _told(plan))


def _told(plan: Plan) -> list[str]:
    """Returns what bounds a plan that is not first, and what it would need to be."""
    starts = ("bound by", "to win", "memory bounds")
    return [said for said in plan.explanation if said.startswith(starts)]


def _layout_table(plans: tuple[Plan, ...]) -> Table:
    degrees = ("tp", "pp", "dp", "cp", "ep", "vpp", "micro", "ZeRO")
    table = new_table("Plans, best first", ("#",), degrees)
    for name in ("recompute", "seq. par.", "layers per stage"):
        table.add_column(name)
    for plan in plans:
        numbers = (
            plan.rank,
            plan.tensor_parallel,
            plan.pipeline_parallel,
            plan.data_parallel,
            plan.context_parallel,
            plan.expert_parallel,
            plan.virtual_stages,
            plan.micro_batch,
            plan.zero_stage,
        )
        sequence = "yes" if plan.sequence_parallel else "no"
        table.add_row(*map(str, numbers), plan.recompute, sequence, layers_per_stage(plan))
    return table


def _prediction_table(plans: tuple[Plan, ...]) -> Table:
    figures = ("step", "80 % interval", "tokens/s", "MFU", "bubble", "GiB", "P(OOM)")
    table = new_table("Predicted; GiB of the heaviest stage's devices", ("#",), figures)
    for plan in plans:
        full = heaviest(plan)
        used = occupancy(full[1].memory_bytes if full else None)
        table.add_row(str(plan.rank), *_speed(plan.cost), used, percent(worst_oom(plan)))
    return table


def _speed(cost: Cost | None) -> list[str]:
    if cost is None:
        return [UNKNOWN] * 5
    return [
        duration(cost.step_time_s),
        interval(cost.step_time_low_s, cost.step_time_high_s),
        count(cost.tokens_per_s),
        percent(cost.mfu_fraction),
        percent(cost.bubble_fraction),
    ]


def _count_lines(counts: SearchCounts) -> list[str]:
    words = plural("layout", counts.legal)
    return [f"{counts.legal} legal {words}; {counts.fits} of those that were costed fit in memory"]


def _dropped_table(counts: SearchCounts) -> Table:
    table = new_table("", (), ("not costed",))
    for name in ("rule", "because"):
        table.add_column(name)
    for rule, number in counts.dropped.items():
        if number:
            table.add_row(str(number), rule, REASONS.get(rule, ""))
    return table


def _shortfall_lines(shortfall: Shortfall) -> list[str]:
    lines = [
        f"the plan that comes closest needs {shortfall.bytes / GIB:.1f} GiB more on a device",
        f"smallest change that would fit: {shortfall.change}",
    ]
    if shortfall.devices:
        words = plural("device", shortfall.devices)
        lines.append(f"it would fit on {shortfall.devices} more {words} of the same kind")
    return lines
