"""Reads the text of a flag; a wrong one raises `InputError` with the flag, the rule, the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, get_args

from apss_jax.schema.errors import mistake

LARGEST: Final = 1_000_000_000  # far above any real count, far below what 64 bits hold
SWITCH: Final = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def whole_number(flag: str, text: str, *, least: int = 1, most: int = LARGEST) -> int:
    """Returns the whole number that a flag gives."""
    if re.fullmatch(r"[0-9]{1,10}", text) and least <= int(text) <= most:
        return int(text)
    rule = f"must be a whole number from {least} to {most}"
    raise mistake(flag, text or "''", rule, f"Give one, for example {flag} 8")


def maybe_number(flag: str, text: str | None, *, least: int = 1) -> int | None:
    """Returns the whole number that a flag gives, None where the flag is not there."""
    return None if text is None else whole_number(flag, text, least=least)


def number_or(
    flag: str, text: str | None, default: int, *, least: int = 1, most: int = LARGEST
) -> int:
    """Returns the whole number that a flag gives, the default where the flag is not there."""
    return default if text is None else whole_number(flag, text, least=least, most=most)


def whole_numbers(flag: str, text: str, *, least: int = 1) -> tuple[int, ...]:
    """Returns the whole numbers of a comma-separated list."""
    return tuple(whole_number(flag, piece.strip(), least=least) for piece in text.split(","))


def one_of(flag: str, text: str, allowed: Sequence[str]) -> str:
    """Returns the allowed word that a flag gives, in any case."""
    words = {word.lower(): word for word in allowed}
    if text.lower() in words:
        return words[text.lower()]
    close = get_close_matches(text.lower(), list(words), n=1)
    guess = f"Did you mean {words[close[0]]}? " if close else ""
    raise mistake(flag, text or "''", "is not known", f"{guess}Choose from {', '.join(allowed)}")


def switch(flag: str, text: str) -> bool:
    """Returns whether a word means on or off."""
    return SWITCH[one_of(flag, text, list(SWITCH))]


def precision_named(text: str | None) -> str | None:
    """Returns the number format that `--precision` gives."""
    from apss_jax.schema.cluster import Precision

    return None if text is None else one_of("--precision", text, get_args(Precision))
