"""What typer finds wrong with a command line, in the form of every other mistake."""

from __future__ import annotations

from typing import Any, Final, cast

import typer

from apss_jax.schema.errors import InputError, mistake

HELP: Final = "See --help"
# typer exports only this one of its errors; the common base of all of them stands behind it, in
# typer's own copy of click or in click itself, depending on typer's version.
USAGE_ERROR: Final = cast(type[Exception], typer.BadParameter.__mro__[1])


def usage_mistake(error: Any) -> InputError:
    """Returns a usage error of typer as an `InputError`."""
    option = getattr(error, "option_name", None)
    message = str(error.format_message()).rstrip(".")
    if option is None:
        return mistake("(command line)", "", _small(message), HELP)
    if hasattr(error, "possibilities"):
        return mistake(option, "", "is not a flag of this command", _guess(error.possibilities))
    rule = "takes no value" if "does not take" in message else "needs a value"
    remedy = "Leave the value out" if rule == "takes no value" else f"Write {option} VALUE"
    return mistake(option, "", rule, remedy)


def _guess(possibilities: list[str] | None) -> str:
    return f"Did you mean {' or '.join(possibilities)}? {HELP}" if possibilities else HELP


def _small(message: str) -> str:
    return message[:1].lower() + message[1:]
