"""The files of a report, by name: a page and a trace."""

from __future__ import annotations

import json
from typing import Final

from apss_jax.report.page import report_page
from apss_jax.report.trace import trace_of
from apss_jax.schema.plan import SearchResult

PAGE: Final = "report.html"
TRACE: Final = "trace.json"
NAMES: Final = (PAGE, TRACE)


def report_files(result: SearchResult, headline: str) -> dict[str, str]:
    """Returns the text of each file; no trace where the result has no timeline."""
    files = {PAGE: report_page(result, headline)}
    trace = trace_of(result)
    if trace is not None:
        files[TRACE] = json.dumps(trace, allow_nan=False) + "\n"
    return files
