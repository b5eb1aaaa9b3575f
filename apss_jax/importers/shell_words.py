"""Flags in a shell script or an arguments file, as words with their values.

What launch scripts of Megatron use is understood: continued lines, comments, quotes, variables
that the text itself sets (with defaults as in `${TP:-8}`), and arrays `ARGS=( ... )` that are
expanded later. Nothing is run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from apss_jax.schema.errors import mistake

ASSIGNMENT: Final = re.compile(
    r"^(?:export\s+|local\s+|declare\s+(?:-\w+\s+)?)?(\w+)\+?=(.*)$", re.DOTALL
)
VARIABLE: Final = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
ARRAY: Final = re.compile(r"[\"']?\$\{(\w+)\[[@*]\]\}[\"']?")
FLAG: Final = re.compile(r"--?[A-Za-z][\w-]*")
QUOTES: Final = "'\""
ROUNDS: Final = 8  # how deep variables may hold variables
MAX_WORDS: Final = 100_000
END: Final = ";"  # between two commands: what follows is no value of the flag before

Flags = dict[str, tuple[str, ...]]
"""Flag with underscores as hyphens, `--tensor-model-parallel-size` -> the words after it."""


def flags_in(text: str, *, file: str | None = None) -> Flags:
    """Returns the flags of a text, a later one in place of an earlier; raises `InputError`."""
    found: Flags = {}
    current: str | None = None
    for word in _words(text, file):
        name, equals, value = word.partition("=")
        if name.startswith("--") and FLAG.fullmatch(name):
            current = name.replace("_", "-")
            found[current] = (value,) if equals else ()
        elif word == END:
            current = None
        elif current is not None:
            found[current] = (*found[current], word)
    return found


def _words(text: str, file: str | None) -> list[str]:
    values: dict[str, str] = {}
    kept = []
    for statement in _statements(re.sub(r"\\\r?\n", " ", text)):
        match = ASSIGNMENT.match(statement.strip())
        if match:
            values[match[1]] = _without_itself(match[1], _bare(match[2].strip()), values)
        else:
            kept.append(_told_apart(statement))
    # Arrays of flags count even where the line that expands them is not part of the text.
    arrays = [value for value in values.values() if "--" in value]
    return _split(_expanded(" ".join([*arrays, END, *kept]), values), file)


def _without_itself(name: str, value: str, values: Mapping[str, str]) -> str:
    """Returns a value in which its own name means the value before: `TP=${TP:-8}` is 8 at first."""

    def own(match: re.Match[str]) -> str:
        if (match[1] or match[3]) != name:
            return match[0]
        return values.get(name, match[2] or "")

    return VARIABLE.sub(own, value)


def _bare(value: str) -> str:
    """Returns a value without the quotes or parentheses around it."""
    for first, last in ("()", '""', "''"):
        if len(value) > 1 and value.startswith(first) and value.endswith(last):
            return value[1:-1]
    return value


def _told_apart(statement: str) -> str:
    """Returns a statement with a mark before it where it is a command and no flags or values."""
    words = statement.split(maxsplit=1)
    return f"{END} {statement}" if len(words) > 1 and not words[0].startswith("-") else statement


def _statements(text: str) -> Iterator[str]:
    """Yields each command; a quoted text or an array may go over several lines."""
    held: list[str] = []
    quote, in_array = "", False
    for char, before in _without_comments(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in QUOTES:
            quote = char
        elif char == "(" and before == "=":
            in_array = True
        elif char == ")":
            in_array = False
        ends = char == "\n" and not quote
        if ends and not in_array:
            yield "".join(held)
            held = []
        else:
            held.append(" " if ends else char)
    yield "".join(held)


def _without_comments(text: str) -> Iterator[tuple[str, str]]:
    """Yields each character outside comments, with the one before it."""
    quote, comment, before = "", False, "\n"
    for char in text:
        if not quote and char == "#" and before.isspace():
            comment = True
        comment = comment and char != "\n"
        if not comment:
            if char in QUOTES and quote in ("", char):
                quote = "" if quote else char
            yield char, before
        before = char


def _value(values: Mapping[str, str | None], match: re.Match[str]) -> str:
    """Returns what a variable stands for: its value, else its default, else its own text."""
    found = values.get(match[1] or match[3])
    fallback = match[0] if match[2] is None else match[2]
    return fallback if found is None else found


def _expanded(text: str, values: Mapping[str, str]) -> str:
    text = ARRAY.sub(" ", text)
    for _ in range(ROUNDS):
        larger = VARIABLE.sub(partial(_value, values), text)
        if larger == text or len(larger) > 16 * MAX_WORDS:
            break
        text = larger
    return text


def _split(text: str, file: str | None) -> list[str]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        rule = f"cannot be read as a shell line: {error}"
        raise mistake("(whole text)", "", rule, "Close the quote", file=file) from None
    if len(words) > MAX_WORDS:
        raise mistake("(whole text)", "", f"has more than {MAX_WORDS} words", "Trim it", file=file)
    return [word for word in words if word]
