"""`--export`: which formats are asked for, and their files for the first plan of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from apss_jax.cli.values import one_of
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from apss_jax.cli.subject import Subject
    from apss_jax.legality.launch import Launch
    from apss_jax.schema.plan import Plan

FLAG: Final = "--export"
FORMATS: Final = ("megatron", "bridge", "deepspeed", "flagscale", "torchtitan", "maxtext", "jax")
EVEN: Final = "equal_stages"


@dataclass(frozen=True)
class Exports:
    """The files of every format by its name, and in words which formats refuse the plan."""

    files: dict[str, dict[str, str]]
    warnings: tuple[str, ...]


def read_formats(texts: Sequence[str], out: str | None) -> tuple[str, ...]:
    """Returns the formats that are asked for, each once; raises `InputError`."""
    names = tuple(dict.fromkeys(one_of(FLAG, text, FORMATS) for text in texts))
    if names and out is None:
        raise mistake(FLAG, names[0], "needs a place for its files", "Add --out DIR")
    return names


def implied_stack(formats: Sequence[str]) -> str | None:
    """Returns the stack of the first format, None without one."""
    if not formats:
        return None
    from apss_jax.exporters.formats import FORMATS as EXPORTERS

    return EXPORTERS[formats[0]].stack


def file_names_of(name: str) -> frozenset[str]:
    """Returns the names that an export's files can have."""
    from apss_jax.exporters.export import REFUSED
    from apss_jax.exporters.formats import FORMATS as EXPORTERS

    return frozenset({REFUSED, *EXPORTERS[name].file_names})


def exports_of(plan: Plan, subject: Subject, formats: Sequence[str], stack: str | None) -> Exports:
    """Returns the files of a plan in some formats, and what was refused or changed."""
    from apss_jax.exporters.formats import export_files

    files: dict[str, dict[str, str]] = {}
    warnings = []
    for name in formats:
        launch = _fitted(plan, subject, name, stack)
        files[name], refused = export_files(launch, name)
        warnings += [f"{FLAG} {name}: {note}" for note in launch.notes]
        if refused:
            why = "; ".join(f"{each.rule}: {each.reason}" for each in refused)
            warnings.append(f"{FLAG} {name} is refused, {why}")
    return Exports(files, tuple(warnings))


def _fitted(plan: Plan, subject: Subject, name: str, stack: str | None) -> Launch:
    """Returns the plan as it is, or with equal stages where only that keeps a format from it."""
    from apss_jax.exporters.formats import export_refusals, launch_of

    launch = launch_of(plan, subject.model, subject.cluster)
    if {each.rule for each in export_refusals(launch, name)} != {EVEN}:
        return launch
    rounded = _rounded(plan, subject, stack)
    return launch if rounded is None else launch_of(rounded[0], *subject, notes=rounded[1])


def _rounded(
    plan: Plan, subject: Subject, stack: str | None
) -> tuple[Plan, tuple[str, ...]] | None:
    """Returns the plan with equal stages and what that costs; None where it is not to be had."""
    from apss_jax.planning.estimate import estimate_plan

    pieces = plan.pipeline_parallel * plan.virtual_stages
    each, rest = divmod(subject.model.num_layers, pieces)
    if rest:
        return None
    estimate = estimate_plan(*subject, plan, stack=stack, split=(each,) * pieces)
    even = estimate.plan
    if not (estimate.legal and even.cost and plan.cost and all(s.fits for s in even.stages)):
        return None
    share = even.cost.step_time_s / plan.cost.step_time_s - 1
    text = (
        f"stages were rounded to {each} layers each: a step takes {even.cost.step_time_s:.3g} s "
        f"instead of {plan.cost.step_time_s:.3g} s ({100 * share:+.1f} %)"
    )
    return even, (text,)
