"""Fields that a run leaves blank: which were filled in, and why a run cannot be used."""

from __future__ import annotations

from typing import TypeVar

ValueT = TypeVar("ValueT")


class UnusableRunError(Exception):
    """A run that cannot be predicted; the text is the reason, without the run's own figures."""


class Gaps:
    """Collects the fields that were assumed."""

    def __init__(self) -> None:
        self._assumed: dict[str, None] = {}

    def fill(self, field: str, given: ValueT | None, default: ValueT) -> ValueT:
        """Returns the given value, else the default, which then counts as assumed."""
        if given is not None:
            return given
        self.assume(field)
        return default

    def assume(self, *fields: str) -> None:
        """Counts fields as assumed."""
        self._assumed.update(dict.fromkeys(fields))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Returns the assumed fields in the order in which they were met."""
        return tuple(self._assumed)


def require(given: ValueT | None, reason: str) -> ValueT:
    """Returns the given value; raises `UnusableRunError` where it is blank."""
    if given is None:
        raise UnusableRunError(reason)
    return given
