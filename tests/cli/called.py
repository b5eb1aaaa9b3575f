"""What a command left behind when a test called it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    """Exit code and both streams."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Returns stdout as the one JSON document that it must be."""
        return json.loads(self.out, parse_constant=_refuse)


CallFn = Callable[..., Done]
"""Runs a command, `search` or `estimate`, with some words."""


def _refuse(text: str) -> None:
    raise AssertionError(f"{text} in a document")
