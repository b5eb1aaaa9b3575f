"""Runs a command of the profiler: prints its answer, or what is wrong, and ends the process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from apss_jax.schema.errors import InputError, mistake

if TYPE_CHECKING:
    from rich.console import Console

ANSWERED: Final = 0
WRONG_INPUT: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
PAGE_COLUMNS: Final = 100  # where no terminal decides
# The common base of what typer finds wrong with a command line; it exports only one of them.
USAGE_ERROR: Final = cast(type[Exception], typer.BadParameter.__mro__[1])

ShowFn = Callable[["Console"], None]
"""Prints an answer for people."""


@dataclass(frozen=True)
class Answer:
    """What a command found: the document, how people see it, how the process ends."""

    document: dict[str, Any]
    show: ShowFn
    exit_code: int = ANSWERED
    as_json: bool = False


def run(app: typer.Typer, argv: Sequence[str] | None = None) -> int:
    """Returns the exit code of a command, everything printed."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        outcome = typer.main.get_command(app).main(
            words, prog_name="python -m profiler", standalone_mode=False
        )
    except InputError as error:
        return _refused(error, as_json="--json" in words)
    except USAGE_ERROR as error:
        text = str(cast(Any, error).format_message()).rstrip(".")
        wrong = mistake("(command line)", "", text[:1].lower() + text[1:], "See --help")
        return _refused(wrong, as_json="--json" in words)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    if not isinstance(outcome, Answer):  # --help has printed and returns a code
        return int(outcome or ANSWERED)
    _print(outcome)
    return outcome.exit_code


def note(text: str) -> None:
    """Tells on stderr what is going on."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _refused(error: InputError, *, as_json: bool) -> int:
    if as_json:
        sys.stdout.write(json.dumps(error.document(), indent=1) + "\n")
    else:
        note("\n".join(f"Error: {wrong.sentence()}" for wrong in error.mistakes))
    return WRONG_INPUT


def _print(answer: Answer) -> None:
    if answer.as_json:
        sys.stdout.write(json.dumps(answer.document, indent=1, allow_nan=False) + "\n")
    else:
        from rich.console import Console

        width = None if sys.stdout.isatty() else PAGE_COLUMNS
        answer.show(Console(highlight=False, markup=False, emoji=False, width=width))
    sys.stdout.flush()
