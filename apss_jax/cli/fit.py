"""The command `python -m apss_jax.cli.fit`: the library's constants from measured runs.

Part of the making of the library, not of its use, so it has no name at the root of the package.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from apss_jax.cli.options import AsJson, Text, Version
from apss_jax.cli.run import Answer, new_app, note, run_process
from apss_jax.schema.runs import PUBLISHED_RUNS, read_runs

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.calibration.library_fit import LibraryFit
    from apss_jax.schema.validation import HeldOut, SourceAccuracy

MODULE: Final = "apss_jax.cli.fit"
HELD_OUT_FILE: Final = Path("references", "held_out.json")


def fit_command(
    *,
    runs: Annotated[
        Text,
        typer.Option(
            "--runs", metavar="FILE.csv", help="Measured runs; default: the shipped ones."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the accuracy, leave the library as it is.")
    ] = False,
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Fit the constants of all devices, links and stacks, and write them into the library.

    Takes some half an hour. Exit codes: 0 done, 2 the input is wrong.
    """
    from apss_jax.calibration.library_constants import load_priors
    from apss_jax.calibration.library_fit import fit_library
    from apss_jax.calibration.library_summary import fitted_validation, held_out
    from apss_jax.calibration.validation import Validated, parts_of, validation_of_comparison
    from apss_jax.cost.compilation import keep_compiled_programs

    keep_compiled_programs()
    found = fit_library(read_runs(runs or PUBLISHED_RUNS), load_priors(), note)
    comparison = found.own.comparison
    before = Validated(validation_of_comparison(comparison, found.skipped), comparison)
    after, left_out = fitted_validation(found), held_out(found)
    columns = {
        "before": [*before.document.sources, *parts_of(before.comparison)],
        "after": [*after.document.sources, *parts_of(after.comparison)],
        "left out": [*left_out.sources, *left_out.parts],
        "generic": [*left_out.generic, *left_out.generic_parts],
    }
    if not dry_run:
        _write(found, left_out)
    return Answer(left_out.to_json(), partial(_show, columns))


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _write(found: LibraryFit, held_out: HeldOut) -> None:
    from apss_jax.calibration.library_constants import load_priors
    from apss_jax.calibration.library_files import write_constants
    from apss_jax.calibration.library_summary import new_constants
    from apss_jax.importers.library import LIBRARY
    from apss_jax.schema.document import write_document

    changed = write_constants(new_constants(found, load_priors().label_sources))
    write_document(held_out, LIBRARY / HELD_OUT_FILE)
    note(f"Wrote {len(changed)} files of constants and {HELD_OUT_FILE}")


def _show(columns: dict[str, list[SourceAccuracy]], console: Console) -> None:
    """Prints step time and memory errors of each source under each set of constants."""
    from rich.table import Table

    table = Table(title="Mean / median error in %, step time; memory", box=None)
    table.add_column("source")
    table.add_column("rows", justify="right")
    for name in columns:
        table.add_column(name, justify="right")
    for each in columns["before"]:
        cells = [_cell(_named(sources, each.source)) for sources in columns.values()]
        if any(cells):
            table.add_row(each.source, str(each.step_time.rows or each.memory.rows), *cells)
    console.print(table)


def _named(sources: list[SourceAccuracy], name: str) -> SourceAccuracy:
    return next(source for source in sources if source.source == name)


def _cell(source: SourceAccuracy) -> str:
    parts = []
    for each in (source.step_time, source.memory):
        if each.mape_percent is not None and each.median_ape_percent is not None:
            parts.append(f"{each.mape_percent:.1f}/{each.median_ape_percent:.1f}")
    return "; ".join(parts)


EXAMPLE: Final = "--dry-run"
app: Final = new_app(fit_command, MODULE, EXAMPLE)

if __name__ == "__main__":
    main()
