"""One full document of each kind of answer, made from its own fields."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from document_samples import filled


@cache
def answers(*kinds: Any) -> tuple[bytes, ...]:
    """Returns full documents of some kinds as files."""
    return tuple(json.dumps(filled(kind, True).to_json()).encode() for kind in kinds)
