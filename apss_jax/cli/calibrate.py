"""The command `python -m apss_jax.calibrate`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from apss_jax.cli.options import AsJson, Text, Version
from apss_jax.cli.output_file import output_file
from apss_jax.cli.run import Answer, new_app, note, run_process
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from apss_jax.calibration.own_runs import Calibrated
    from apss_jax.schema.calibration import Calibration
    from apss_jax.schema.runs import Run


def calibrate_command(
    *,
    runs: Annotated[
        Text,
        typer.Option(
            "--runs",
            metavar="FILE.csv",
            help="Your measured runs, one a line; one is enough. Columns that must be there: "
            "gpu_model, num_gpus, num_layers, hidden; to be of use also step_time_s or "
            "tokens_per_s_per_gpu, the layout (tp, pp, micro_batch, global_batch, ...) and "
            "peak_mem_gib.",
        ),
    ] = None,
    out: Annotated[
        Text,
        typer.Option(
            "--out", metavar="STACK.json", help="The stack file to write, for --stack elsewhere."
        ),
    ] = None,
    base: Annotated[
        Text,
        typer.Option(
            "--base",
            metavar="NAME",
            help="Stack to start from: library name or stack file.  "
            "[default: the one that the runs' framework means]",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the stack file if it is there.")
    ] = False,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Fit a stack file to a few runs of your own, as far as they determine it.

    Exit codes: 0 answered, 2 the input is wrong, or says too little, or contradicts itself.
    """
    for flag, text in (("--runs", runs), ("--out", out)):
        if not text:
            raise mistake(flag, "", "is missing", f"Add {flag} FILE")
    assert runs is not None and out is not None  # the loop above has refused
    file = output_file("--out", out, ".json", force=force)
    from apss_jax.schema.runs import read_runs

    calibrated = _calibrated(read_runs(runs), base, file)
    document = calibrated.document.model_copy(update={"file": str(file)})
    return Answer(document.to_json(), partial(_show, document))


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _calibrated(runs: Sequence[Run], base: str | None, file: Path) -> Calibrated:
    from apss_jax.calibration.own_runs import calibrate_stack
    from apss_jax.cost.compilation import keep_compiled_programs
    from apss_jax.importers.clusters import load_stack
    from apss_jax.schema.document import write_document

    start = load_stack(base) if base else None
    keep_compiled_programs()
    calibrated = calibrate_stack(runs, base=start, name=file.stem)
    write_document(calibrated.stack, file)
    note(f"Wrote {file}")
    return calibrated


def _show(calibration: Calibration, console: Console) -> None:
    from apss_jax.cli.calibrate_text import show_calibration

    show_calibration(calibration, console)


EXAMPLE: Final = "--runs runs.csv --out stack.json"
app: Final = new_app(calibrate_command, "apss_jax.calibrate", EXAMPLE)
