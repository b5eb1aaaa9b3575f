"""Runs a command: prints its answer on stdout, or what is wrong, and returns the exit code."""

from __future__ import annotations

import gc
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer

from apss_jax.cli.usage import USAGE_ERROR, usage_mistake
from apss_jax.schema.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

ANSWERED: Final = 0
WRONG_INPUT: Final = 2
NO_PLAN: Final = 3
INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE

FILE_COLUMNS: Final = 80
GARBAGE_LOOKS: Final = 100_000  # new objects between two looks for garbage

ShowFn = Callable[["Console"], None]
"""Prints an answer for people."""


@dataclass(frozen=True)
class Answer:
    """What a command found: the document, how people see it, how the process ends."""

    document: dict[str, Any]
    show: ShowFn
    exit_code: int = ANSWERED


def new_app(command: Callable[..., Answer], module: str, example: str) -> typer.Typer:
    """Returns the typer application of one command; its help ends with an example of its flags."""
    app = typer.Typer(
        name=f"python -m {module}",
        add_completion=False,
        rich_markup_mode=None,  # plain help: drawing boxes would import rich, half of the time
    )
    # The character keeps the example on lines of its own.
    app.command(epilog=f"\b\nExample:\n  python -m {module} {example}")(command)
    return app


def run_process(app: typer.Typer) -> NoReturn:
    """Runs a command as what this process is for, and ends the process."""
    # Importing and compiling make many objects that stay: looking through them for garbage every
    # few hundred costs a tenth of the whole command, and a last look at the end as much again.
    gc.set_threshold(GARBAGE_LOOKS)
    # Kernels take four fifths of the time to compile, and their loops run as fast.
    os.environ.setdefault("NUMBA_OPT", "1")
    exit_code = run(app)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # All is written: taking JAX and its threads apart would take a quarter of a second.
    os._exit(exit_code)


def run(app: typer.Typer, argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of a command, everything printed."""
    words = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in words
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return _answer(app, words, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more when it ends; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


def note(text: str) -> None:
    """Tells on stderr what is going on."""
    print(text, file=sys.stderr, flush=True)


def _answer(app: typer.Typer, words: list[str], as_json: bool) -> int:
    try:
        outcome = typer.main.get_command(app).main(
            words, prog_name=app.info.name, standalone_mode=False
        )
    except InputError as error:
        return _refuse(error, as_json)
    except USAGE_ERROR as error:
        return _refuse(usage_mistake(error), as_json)
    if not isinstance(outcome, Answer):  # --help and --version have printed and return a code
        return int(outcome or ANSWERED)
    if as_json:
        _print_json(outcome.document)
    else:
        _print_text(outcome.show)
    sys.stdout.flush()
    return outcome.exit_code


def _refuse(error: InputError, as_json: bool) -> int:
    if as_json:
        _print_json(error.document())
        sys.stdout.flush()
    else:
        note("\n".join(f"Error: {mistake.sentence()}" for mistake in error.mistakes))
    return WRONG_INPUT


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def _print_text(show: ShowFn) -> None:
    """Prints an answer as wide as the terminal, or for a file, whose look no terminal decides."""
    from rich.console import Console

    if sys.stdout.isatty():
        show(Console(highlight=False, markup=False, emoji=False))
        return
    page = io.StringIO()
    show(Console(file=page, width=FILE_COLUMNS, highlight=False, markup=False, emoji=False))
    print("\n".join(line.rstrip() for line in page.getvalue().splitlines()))
