"""The command `python -m apss_jax.search`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from apss_jax.cli import defaults
from apss_jax.cli.exports import FORMATS, exports_of, implied_stack, read_formats
from apss_jax.cli.options import (
    AsJson,
    ClusterName,
    GpuName,
    ModelName,
    PrecisionName,
    SeqLen,
    StackName,
    Text,
    Version,
)
from apss_jax.cli.output_folder import OutputFolder, output_folder
from apss_jax.cli.pins import read_pins
from apss_jax.cli.run import ANSWERED, NO_PLAN, Answer, new_app, note, run_process
from apss_jax.cli.subject import Subject, load_subject
from apss_jax.cli.values import maybe_number, one_of, precision_named, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.plan import SearchResult

SOLVERS: Final = ("dpsn", "exact", "uniform", "balanced")
SOLVER_HELP = (
    "How layers are cut: dpsn (the network, beside the exact solver), exact, uniform or balanced."
)
PIN_HELP = (
    "Keep a degree fixed, as in --pin tp=8 or --pin tp=4,8; repeats. Keys: tp pp dp cp ep vpp mbs "
    "zero recompute sp schedule."
)
EXPORT_HELP = (
    f"Write the first plan for a framework, into DIR/FORMAT; repeats. Formats: {' '.join(FORMATS)}."
)
OUT_HELP = "Write result.json, the first plan.json, report.html and trace.json into a folder."

SolverName = Annotated[str, typer.Option("--solver", metavar="NAME", help=SOLVER_HELP)]
OutFolder = Annotated[Text, typer.Option("--out", metavar="DIR", help=OUT_HELP)]


def search_command(
    *,
    model: ModelName = defaults.MODEL,
    cluster: ClusterName = defaults.CLUSTER,
    gpu: GpuName = None,
    global_batch: Annotated[
        str, typer.Option("--global-batch", metavar="N", help="Sequences per step.")
    ] = defaults.GLOBAL_BATCH,
    seq_len: SeqLen = None,
    precision: PrecisionName = None,
    stack: StackName = None,
    solver: SolverName = defaults.SOLVER,
    pin: Annotated[
        list[str] | None, typer.Option("--pin", metavar="KEY=VALUE", help=PIN_HELP)
    ] = None,
    top: Annotated[
        str, typer.Option("--top", metavar="K", help="How many plans to show.")
    ] = defaults.TOP,
    out: OutFolder = None,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", metavar="FORMAT", help=EXPORT_HELP),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files of an older --out.")
    ] = False,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Rank plans: how to lay a training run out on a cluster, how long a step takes, what fits.

    Exit codes: 0 answered, 2 the input is wrong, 3 no plan fits.
    """
    formats = read_formats(export or (), out)
    folder = output_folder(out, force=force, formats=formats)
    chosen = stack or implied_stack(formats)
    options: dict[str, Any] = {
        "global_batch": whole_number("--global-batch", global_batch),
        "seq_len": maybe_number("--seq-len", seq_len),
        "precision": precision_named(precision),
        "stack": chosen,
        "solver": one_of("--solver", solver, SOLVERS),
        "pins": read_pins(pin or ()) or None,
        "top": whole_number("--top", top),
    }
    subject = load_subject(model, cluster, stack, gpu)
    result = _search(model, subject.cluster if gpu else cluster, options)
    if formats and stack is None:
        said = f"software stack '{chosen}', as --export {formats[0]} implies it"
        result = result.model_copy(update={"assumptions": (*result.assumptions, said)})
    if folder:
        result = _written(folder, result, subject, chosen)
    show = partial(_show, result, subject)
    return Answer(result.to_json(), show, ANSWERED if result.plans else NO_PLAN)


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _written(
    folder: OutputFolder, result: SearchResult, subject: Subject, stack: str | None
) -> SearchResult:
    """Returns the result with what a report draws and what its exports say, everything written."""
    from apss_jax.planning.detail import with_detail
    from apss_jax.report.files import report_files
    from apss_jax.report.plan_words import headline

    if result.plans:
        note("Following the first plan's ops, and the plans under other batches and links")
    result, files = with_detail(*subject, result, stack), None
    if result.plans and folder.formats:
        exports = exports_of(result.plans[0], subject, folder.formats, stack)
        result = result.model_copy(update={"warnings": (*result.warnings, *exports.warnings)})
        files = exports.files
    folder.write(result, report_files(result, headline(*subject)), files)
    return result


def _search(model: str, cluster: ClusterProfile | str, options: dict[str, Any]) -> SearchResult:
    from apss_jax.planning.beginning import begin_search
    from apss_jax.planning.clock import Clock
    from apss_jax.planning.inputs import gather_inputs

    clock = Clock()
    question = dict(options)
    request = {name: question.pop(name) for name in ("solver", "pins", "top")}
    inputs = gather_inputs(model, cluster, **question)
    # Begun before what takes as long to import.
    begun = begin_search(inputs, clock, aside=True, **request)
    from apss_jax.cost.compilation import keep_compiled_programs
    from apss_jax.planning.search import finish_search

    keep_compiled_programs()
    return finish_search(begun, note)


def _show(result: SearchResult, subject: Subject, console: Console) -> None:
    from apss_jax.cli.search_text import show_search

    show_search(result, subject.model, subject.cluster, console)
    phases = ", ".join(f"{name} {time_s:.2f} s" for name, time_s in result.search.elapsed_s.items())
    note(f"Took {phases}")


EXAMPLE: Final = "--model gpt2 --cluster 2x8xA100 --global-batch 256"
app: Final = new_app(search_command, "apss_jax.search", EXAMPLE)
