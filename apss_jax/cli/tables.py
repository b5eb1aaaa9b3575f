"""Pieces of an answer that both commands show: headline, stages, breakdown, lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from apss_jax.report.figures import (
    UNKNOWN,
    bar,
    duration,
    percent,
    ranges,
)
from apss_jax.report.plan_words import (
    BREAKDOWN_WORDS,
    heaviest,
    held_by,
    load_fraction,
    occupancy,
    plural,
)
from apss_jax.schema.plan import Plan, Stage

if TYPE_CHECKING:
    from rich.console import Console


TIGHT_FRACTION: Final = 0.9  # of the capacity, from which a stage is marked
LAYERS_WIDTH: Final = 10  # of '48-63+head'; stages of several chunks may take several lines
DEVICES_WIDTH: Final = 16
MOST_STAGES: Final = 16  # lines of the stage table; of deeper pipelines only a part is shown
END_STAGES: Final = 6  # of that part, at each end


def new_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """Returns an empty table; the columns named first are text, the others are figures."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def workload_line(plan: Plan) -> str:
    """Returns the question that a plan answers."""
    known = {
        "global batch": plan.global_batch,
        "sequence length": plan.seq_len,
        "precision": plan.precision,
        "stack": plan.stack,
    }
    return ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)


def layout_lines(plan: Plan) -> list[str]:
    """Returns the degrees of a plan under the names of the flags, and its other settings."""
    degrees = {
        "tp": plan.tensor_parallel,
        "pp": plan.pipeline_parallel,
        "dp": plan.data_parallel,
        "cp": plan.context_parallel,
        "ep": plan.expert_parallel,
        "vpp": plan.virtual_stages,
    }
    sequence = "sequence parallel, " if plan.sequence_parallel else ""
    over = f" over {plan.zero_shards} ranks" if plan.zero_shards else ""
    return [
        f"{' '.join(f'{name}={value}' for name, value in degrees.items())}, "
        f"{plan.num_micro_batches} {plural('micro-batch', plan.num_micro_batches)} "
        f"of {plan.micro_batch}",
        f"ZeRO {plan.zero_stage}{over}, recompute {plan.recompute}, {sequence}{plan.schedule}",
    ]


def stage_table(plan: Plan, title: str) -> Table:
    """Returns what each stage holds, where, how long one micro-batch takes, how full it gets.

    The device type stands in the title where all stages have the same.
    """
    types = list(dict.fromkeys(stage.device_type or UNKNOWN for stage in plan.stages))
    mixed = len(types) > 1
    table = new_table(
        title if mixed else f"{title}, on {types[0]}",
        ("#", "layers", "devices", *(["type"] if mixed else [])),
        # With types in their column, the longer title would break their names in 80 columns.
        ("forward", "backward", "GiB", "memory", "OOM" if mixed else "P(OOM)"),
    )
    table.columns[1].min_width = LAYERS_WIDTH
    shown = _shown_stages(plan)
    for index, stage in enumerate(plan.stages):
        if index in shown:
            table.add_row(str(index), *_stage_cells(stage, mixed=mixed))
        elif index - 1 in shown:
            table.add_row("..")
    return table


def _stage_cells(stage: Stage, *, mixed: bool) -> list[str | Text]:
    """Returns the cells of a stage's line behind its number, its device type where types differ."""
    return [
        held_by(stage),
        _devices(stage),
        *([stage.device_type or UNKNOWN] if mixed else []),
        duration(stage.forward_s),
        duration(stage.backward_s),
        occupancy(stage.memory_bytes),
        _memory_bar(stage),
        percent(stage.oom_probability),
    ]


def _shown_stages(plan: Plan) -> set[int]:
    """Returns the stages worth a line: all of few; of many the ends, the fullest, the slowest."""
    count = len(plan.stages)
    if count <= MOST_STAGES:
        return set(range(count))
    full = heaviest(plan)
    slowest = max(range(count), key=lambda i: plan.stages[i].backward_s or 0.0)
    ends = {*range(END_STAGES), *range(count - END_STAGES, count)}
    return ends | {slowest} | ({full[0]} if full else set())


def _devices(stage: Stage) -> str:
    """Returns the devices as runs; of many runs the first, and how many devices there are."""
    text = ranges(stage.devices)
    if len(text) <= DEVICES_WIDTH:
        return text
    return f"{text.partition(',')[0]},... ({len(stage.devices)})"


def _memory_bar(stage: Stage) -> Text:
    if stage.memory_bytes is None:
        return Text(UNKNOWN)
    fraction = load_fraction(stage.memory_bytes)
    tight = "yellow" if fraction > TIGHT_FRACTION else "green"
    return Text(bar(fraction), style="red" if stage.fits is False else tight)


def breakdown_table(plan: Plan) -> Table:
    """Returns where the time of a step goes."""
    table = new_table("Where the step's time goes", ("part",), ("time", "share", ""))
    if plan.cost is None:
        return table
    for key, words in BREAKDOWN_WORDS.items():
        part_s = getattr(plan.cost.breakdown_s, key)
        share = part_s / plan.cost.step_time_s
        table.add_row(words, duration(part_s), percent(share), bar(share))
    return table


def print_list(console: Console, title: str, lines: Iterable[str]) -> None:
    """Prints sentences under a title; nothing where there are none."""
    shown = list(lines)
    if shown:
        console.print()
        console.print(title, style="bold")
    for line in shown:
        console.print(labelled("-", line))


def labelled(label: str, text: str) -> Table:
    """Returns a label and a sentence whose further lines stand under its first word."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(text))
    return grid
