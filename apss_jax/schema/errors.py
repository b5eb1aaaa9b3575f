"""Wrong input, said so that a person can mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

MAX_SHOWN = 120  # characters of a value that a message repeats
ERROR_SCHEMA = "apss.error/1"


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong: where it stands, what it is, which rule it broke, what to do."""

    file: str | None  # path as the person wrote it; None for a flag or an argument
    key: str  # dotted path in the file, or the flag
    value: str  # shortened for display
    rule: str
    remedy: str

    def sentence(self) -> str:
        """Returns the mistake in one line."""
        place = f"{self.file}: " if self.file else ""
        shown = f" is {self.value}" if self.value else ""
        return f"{place}{self.key}{shown}: {self.rule}. {self.remedy}"


class InputError(Exception):
    """The input is wrong; carries every mistake that was found."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(m.sentence() for m in self.mistakes))

    def document(self) -> dict[str, object]:
        """Returns the error as the JSON document of schema `apss.error/1`."""
        return {"schema": ERROR_SCHEMA, "errors": [asdict(m) for m in self.mistakes]}


def shorten(value: object) -> str:
    """Returns a value as text of bounded length."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def mistake(
    key: str, value: object, rule: str, remedy: str, *, file: str | None = None
) -> InputError:
    """Returns an `InputError` with one mistake in it."""
    return InputError([Mistake(file, key, shorten(value), rule, remedy)])
