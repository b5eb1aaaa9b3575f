"""A search result as one page that opens without a network: `report.html`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from apss_jax.report import figures
from apss_jax.report.curves import MOST_LINES, curve_picture, value_text
from apss_jax.report.gantt import gantt_pictures
from apss_jax.report.plan_words import (
    BREAKDOWN_WORDS,
    MEMORY_WORDS,
    PASS_WORDS,
    QUESTION_WORDS,
    REASONS,
    held_by,
    layers_per_stage,
)
from apss_jax.schema.plan import Plan, SearchResult, Stage

TEMPLATE: Final = "page.html.jinja"
STYLE: Final = "page.css"
FOLDER: Final = Path(__file__).parent
MOST_RUNS: Final = 3  # of device numbers that are spelled out
FORMATS: Final[Mapping[str, Callable[[Any], str]]] = {
    "duration": figures.duration,
    "count": figures.count,
    "gib": figures.gib,
    "percent": figures.percent,
    "plain": lambda value: figures.UNKNOWN if value is None else str(value),
}


def report_page(result: SearchResult, headline: str) -> str:
    """Returns the page; every figure on it carries its key in the result's document."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    datum = _Data(result.to_json())
    pages.globals.update(
        datum=lambda key, kind="plain": Html(datum.element(key, kind)),
        figures=figures,
        held_by=held_by,
        devices=device_words,
        split=layers_per_stage,
        value_text=value_text,
    )
    return pages.get_template(TEMPLATE).render(
        result=result,
        headline=headline,
        style=Html((FOLDER / STYLE).read_text(encoding="utf-8")),
        gantts=[Html(each) for each in _gantts(result)],
        curves=[(each, Html(curve_picture(each))) for each in result.sensitivity],
        breakdown=BREAKDOWN_WORDS,
        memory=MEMORY_WORDS,
        passes=PASS_WORDS,
        questions=QUESTION_WORDS,
        reasons=REASONS,
        most_lines=MOST_LINES,
        slowest_s=max((_high_s(plan) for plan in result.plans), default=1.0),
    )


class Html(str):
    """Text that is markup already: templates do not escape it."""

    __slots__ = ()

    def __html__(self) -> str:
        """Returns the text as it is."""
        return self


def _gantts(result: SearchResult) -> list[str]:
    return gantt_pictures(result.timeline) if result.timeline else []


def _high_s(plan: Plan) -> float:
    return plan.cost.step_time_high_s if plan.cost else 0.0


def device_words(stage: Stage) -> str:
    """Returns the devices of a stage as runs; of many runs the first, and how many there are."""
    text = figures.ranges(stage.devices)
    runs = text.split(",")
    return text if len(runs) <= MOST_RUNS else f"{runs[0]}, ... ({len(stage.devices)} devices)"


class _Data:
    """The figures of a document as elements that name where they come from."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def element(self, key: str, kind: str) -> str:
        """Returns `<data>` with the document's own value, and its text for people."""
        value: Any = self._document
        for name in key.split("."):
            value = value[int(name)] if isinstance(value, list) else value[name]
        raw = json.dumps(value).replace('"', "&quot;")
        text = FORMATS[kind](value).replace("<", "&lt;").replace(">", "&gt;")
        return f'<data data-key="{key}" data-kind="{kind}" value="{raw}">{text}</data>'
