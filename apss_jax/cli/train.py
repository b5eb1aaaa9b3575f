"""The command `python -m apss_jax.train`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from apss_jax.cli import defaults
from apss_jax.cli.options import AsJson, Version
from apss_jax.cli.run import ANSWERED, Answer, new_app, note, run_process
from apss_jax.cli.values import one_of, whole_number

if TYPE_CHECKING:
    from rich.console import Console

    from apss_jax.training.steps import Report

LINE_EVERY: Final = 50
OBJECTIVES: Final = ("contrastive", "info_nce", "reinforce", "sign", "imitation")


def train_command(
    *,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Where the run lives; goes on if begun.")
    ] = defaults.TRAIN_OUT,
    steps: Annotated[
        str, typer.Option("--steps", metavar="N", help="Training steps in all.")
    ] = defaults.TRAIN_STEPS,
    seed: Annotated[
        str, typer.Option("--seed", metavar="N", help="The same seed gives the same network.")
    ] = "0",
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="NAME", help=f"One of {', '.join(OBJECTIVES)}."),
    ] = OBJECTIVES[0],
    measured_every: Annotated[
        str,
        typer.Option("--measure-every", metavar="N", help="Steps between two looks; 0 for none."),
    ] = "250",
    as_json: AsJson = False,
    version: Version = False,
) -> Answer:
    """Train the partitioning network on synthetic problems, from a seed, without a GPU.

    A run that was stopped goes on where it was saved, with the same result. Exit codes: 0 done, 2
    the input is wrong.
    """
    settings: dict[str, Any] = {
        "seed": whole_number("--seed", seed, least=0),
        "steps": whole_number("--steps", steps),
        "objective": one_of("--objective", objective, OBJECTIVES),
    }
    every = whole_number("--measure-every", measured_every, least=0)
    document = _train(Path(out), settings, every)
    return Answer(document, partial(_show, document), ANSWERED)


def main() -> None:
    """Runs the command and ends the process."""
    run_process(app)


def _train(folder: Path, settings: dict[str, Any], measured_every: int) -> dict[str, Any]:
    from apss_jax.cost.compilation import keep_compiled_programs
    from apss_jax.training.run import run_training
    from apss_jax.training.trainer import TrainingConfig

    keep_compiled_programs()
    config = TrainingConfig(**settings)
    note(f"Drawing problems; the run is in {folder}")
    with _progress(config.all_steps) as on_report:
        run_training(config, folder, measured_every=measured_every, on_report=on_report)
    return {"schema": "apss.training/1", "out": str(folder), **settings}


@contextlib.contextmanager
def _progress(steps: int) -> Iterator[Callable[[Report], None]]:
    """Yields what moves a bar on stderr; without a terminal, a line now and then."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        yield partial(_say, steps)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("", total=steps)

        def move(report: Report) -> None:
            text = f"{report['objective']}, loss {report['loss']:.3f}"
            bar.update(task, completed=float(report["step"]), description=text)

        yield move


def _say(steps: int, report: Report) -> None:
    if int(report["step"]) % LINE_EVERY in (0, steps):
        note(f"{report['step']} of {steps}: {report['objective']}, loss {report['loss']:.3f}")


def _show(document: dict[str, Any], console: Console) -> None:
    console.print(f"Trained {document['steps']} steps; the network is in {document['out']}")


EXAMPLE: Final = "--out out/dpsn --steps 8000 --seed 1"
app: Final = new_app(train_command, "apss_jax.train", EXAMPLE)
