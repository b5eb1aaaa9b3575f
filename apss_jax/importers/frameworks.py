"""Which stack a framework's name means, and what that framework does where a run is silent."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from apss_jax.importers.library import read_library
from apss_jax.schema.references import Framework, FrameworkList

GENERIC: Final = Framework(pattern="", stack="generic", source="an unlisted framework")


def framework_named(text: str | None) -> Framework:
    """Returns the first framework whose pattern the name matches, else the generic one."""
    for framework in _known():
        if re.search(framework.pattern, text or "", re.IGNORECASE):
            return framework
    return GENERIC


@cache
def _known() -> tuple[Framework, ...]:
    return read_library(FrameworkList, "references", "frameworks").frameworks
