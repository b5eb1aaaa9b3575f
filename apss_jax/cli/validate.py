"""The command `python -m apss_jax.validate`."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from apss_jax.cli.options import AsJson, Text, Version
from apss_jax.cli.run import Answer, new_app, note, run
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from apss_jax.calibration.prediction import ProgressFn
    from apss_jax.calibration.validation import Validated
    from apss_jax.schema.runs import Run
    from apss_jax.schema.validation import Validation

PICTURES: Final = (".png", ".svg", ".pdf")
MODULE: Final = "apss_jax.validate"
TOLD_EVERY_FRACTION: Final = 0.1  # of the runs, after which progress is told


@dataclass(frozen=True)
class OutputFiles:
    """Where a picture and a page are written, None for neither."""

    picture: Path | None
    report: Path | None


def validate_command(
    *,
    runs: Annotated[
        Text,
        typer.Option(
            "--runs",
            metavar="FILE.csv",
            help="Measured runs, one a line. Columns that must be there: gpu_model, num_gpus, "
            "num_layers, hidden; blank fields are unknown. Default: the published runs.",
        ),
    ] = None,
    generic_stack: Annotated[
        bool,
        typer.Option(
            "--generic-stack", help="Predict every run as one of an unlisted framework's."
        ),
    ] = False,
    picture: Annotated[
        Text,
        typer.Option(
            "--picture",
            metavar="FILE.png",
            help="Draw predicted against measured; also .svg and .pdf.",
        ),
    ] = None,
    report: Annotated[
        Text,
        typer.Option(
            "--report",
            metavar="FILE.md",
            help="Write the tables as a page, the generic stack's figures beside.",
        ),
    ] = None,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Compare predictions with measured runs: step time, memory, and who ran out of it.

    Exit codes: 0 answered, 2 the input is wrong.
    """
    files = OutputFiles(
        _writable("--picture", picture, PICTURES), _writable("--report", report, (".md",))
    )
    from apss_jax.schema.runs import PUBLISHED_RUNS, read_runs

    found = read_runs(runs or PUBLISHED_RUNS)
    validated = _validated(found, generic=generic_stack)
    _write(files, found, validated, published=not runs)
    return Answer(validated.document.to_json(), partial(_show, validated.document))


def main() -> None:
    """Runs the command and ends the process."""
    sys.exit(run(app))


def _validated(runs: Sequence[Run], *, generic: bool) -> Validated:
    from apss_jax.calibration.validation import validate_runs
    from apss_jax.cost.compilation import keep_compiled_programs
    from apss_jax.importers.clusters import load_stack

    keep_compiled_programs()
    return validate_runs(
        runs, stack=load_stack("generic") if generic else None, progress=_progress()
    )


def _progress() -> ProgressFn:
    """Returns what tells on stderr how far the prediction is, now and then."""
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        if done == total or done - told >= TOLD_EVERY_FRACTION * total:
            told = done
            note(f"Predicted {done} of {total} runs")

    return tell


def _writable(flag: str, text: str | None, endings: tuple[str, ...]) -> Path | None:
    """Returns the path of a file to be written; raises `InputError` before any work is done."""
    if text is None:
        return None
    path = Path(text)
    if path.suffix.lower() not in endings:
        rule = f"does not end in {' or '.join(endings)}"
        raise mistake(flag, text or "''", rule, f"Name a {endings[0]} file")
    if path.is_dir():
        raise mistake(flag, text, "is a directory", "Name a file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        rule = f"its folder {path.parent} is not there or cannot be written"
        raise mistake(flag, text, rule, "Make the folder or name another")
    return path


def _write(
    files: OutputFiles, runs: Sequence[Run], validated: Validated, *, published: bool
) -> None:
    if files.picture is not None:
        from apss_jax.report.accuracy_picture import draw_accuracy

        draw_accuracy(validated.comparison, files.picture)
        note(f"Wrote {files.picture}")
    if files.report is not None:
        from apss_jax.schema.document import write_text

        write_text(files.report, _page(runs, validated, published=published))
        note(f"Wrote {files.report}")


def _page(runs: Sequence[Run], validated: Validated, *, published: bool) -> str:
    """Returns the page; what only the published runs have is told with them."""
    from apss_jax.calibration.held_out import measured_and_predicted, shipped_held_out
    from apss_jax.calibration.validation import parts_of
    from apss_jax.report.accuracy_page import PageInputs, accuracy_page

    generic = _validated(runs, generic=True)
    words = shlex.join(["python", "-m", MODULE, *sys.argv[1:]])
    page = PageInputs(validated.document, generic.document, words, date.today().isoformat())
    if published:
        page = replace(
            page,
            parts=parts_of(validated.comparison),
            generic_parts=parts_of(generic.comparison),
            held_out=shipped_held_out(),
            contradictions=measured_and_predicted(validated.comparison),
        )
    return accuracy_page(page)


def _show(validation: Validation, console: Console) -> None:
    from apss_jax.cli.validate_text import show_validation

    show_validation(validation, console)


EXAMPLE: Final = "--runs runs.csv --json"
app: Final = new_app(validate_command, MODULE, EXAMPLE)
