"""The page of a report: its figures are the document's, and it needs nothing beside itself."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from browser import CHROMIUM, seen
from page_reader import drawings, number_of, slack_of
from report_samples import empty_result, long_result, mixed_result

from apss_jax.report.page import FOLDER, STYLE, report_page
from apss_jax.schema.plan import SearchResult

ResultFn = Callable[[], SearchResult]
RESULTS: tuple[ResultFn, ...] = (mixed_result, long_result, empty_result)
HEADLINE = "tiny <b>model</b> on a cluster"
LEAST_CONTRAST = 4.5  # of text, WCAG 2.2 success criterion 1.4.3


class Figures(HTMLParser):
    """Collects the `data` elements of a page with their text, and every reference it makes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.figures: list[tuple[dict[str, str], str]] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self._open: dict[str, str] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remembers an element."""
        given = {name: value or "" for name, value in attrs}
        self.references += [given[name] for name in ("href", "src") if name in given]
        self._open = given if tag == "data" else None
        self.references += ["script"] if tag == "script" else []

    def handle_data(self, data: str) -> None:
        """Joins a text with the element it stands in."""
        self.words.append(data)
        if self._open is not None:
            self.figures.append((self._open, data))
            self._open = None


def looked_up(document: Any, key: str) -> Any:
    """Returns the value at a dotted key."""
    for name in key.split("."):
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document


def assert_says(text: str, value: float | None, kind: str) -> None:
    """A text read as a person reads it is the value, rounded to the digits that it shows."""
    if value is None or text == "-":
        assert (value, text) == (None, "-")
    elif text[0] in "<>":
        limit = number_of(text, kind)
        assert limit is not None
        assert 0 < value < 1 and (value < limit if text[0] == "<" else value > limit)
    else:
        assert number_of(text, kind) == pytest.approx(value, abs=slack_of(text, kind))


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("47.6 ms", 0.0481, "duration"),
        ("42 %", 0.43, "percent"),
        ("1.5", 1.6 * 2**30, "gib"),
        ("8.03 B", 8.13e9, "count"),
        ("<1 %", 0.02, "percent"),
        ("-", 0.0, "plain"),
        ("0 s", None, "duration"),
    ],
)
def test_a_wrong_text_would_be_seen(text: str, value: float | None, kind: str) -> None:
    """The comparison fails for another unit, another digit, and a number that is not known."""
    with pytest.raises(AssertionError):
        assert_says(text, value, kind)


@pytest.mark.parametrize("result", RESULTS)
def test_figures_are_those_of_the_document(result: ResultFn) -> None:
    """Each figure names its key; value and text are what the written document has there."""
    document = json.loads(json.dumps(result().to_json()))
    found = Figures(report_page(result(), HEADLINE)).figures
    assert len(found) >= 3
    for given, text in found:
        value = looked_up(document, given["data-key"])
        assert json.loads(given["value"]) == value
        assert_says(text, value, given["data-kind"])


def test_what_a_person_asks_is_on_the_page() -> None:
    """Step time and interval of every plan, and memory of every stage of the first."""
    result = mixed_result()
    keys = {given["data-key"] for given, _ in Figures(report_page(result, HEADLINE)).figures}
    for rank in range(len(result.plans)):
        cost = f"plans.{rank}.cost."
        assert {cost + "step_time_s", cost + "step_time_low_s", cost + "mfu_fraction"} <= keys
    for stage in range(4):
        assert f"plans.0.stages.{stage}.memory_bytes.total" in keys
    assert {"sensitivity.0.points.0.step_time_s.0", "timeline.step_time_s"} <= keys


@pytest.mark.parametrize("result", RESULTS)
def test_a_page_needs_nothing_else(result: ResultFn) -> None:
    """No script, no address: it opens without a network."""
    page = report_page(result(), HEADLINE)
    assert Figures(page).references == ["data:,"]
    assert not re.search(r"https?://|url\(|@import", page)


def test_names_are_text() -> None:
    """Names of models and devices that hold markup are shown, not run."""
    page = report_page(mixed_result(), HEADLINE)
    assert "<b>" not in page and "<i>" not in page
    assert HEADLINE in Figures(page).words
    assert "slow <i>" in {word.strip() for word in Figures(page).words}


def test_reasons_stand_on_the_page() -> None:
    """Explanations, assumptions and what was dropped, in words."""
    result = mixed_result()
    words = {word.strip() for word in Figures(report_page(result, HEADLINE)).words}
    assert set(result.plans[0].explanation) <= words
    assert {name for name, count in result.search.dropped.items() if count} <= words


def test_no_plan_says_what_is_missing() -> None:
    """The page of a search without a plan has the shortfall, and no figure of any plan."""
    shortfall = empty_result().shortfall
    assert shortfall
    page = report_page(empty_result(), HEADLINE)
    keys = {given["data-key"] for given, _ in Figures(page).figures}
    assert "shortfall.bytes" in keys
    assert not any(key.startswith(("plans.", "timeline.", "sensitivity.")) for key in keys)
    assert shortfall.change in page
    assert not drawings(page, "bar") and not drawings(page, "gantt")


def test_the_same_result_gives_the_same_page() -> None:
    """Nothing on it comes from a clock."""
    assert report_page(mixed_result(), HEADLINE) == report_page(mixed_result(), HEADLINE)


def themes() -> list[dict[str, str]]:
    """Returns the colours of the light and the dark page by name."""
    css = (FOLDER / STYLE).read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


def luminance(colour: str) -> float:
    """Returns the relative luminance of WCAG."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(
    ("text", "ground"),
    [("text", "page"), ("text", "panel"), ("muted", "page"), ("muted", "panel"), ("bad", "panel"),
     ("on-aqua", "aqua")],
)  # fmt: skip
def test_text_can_be_read_in_both_themes(text: str, ground: str) -> None:
    """Text has the contrast that the guideline asks for."""
    assert len(themes()) == 2
    for theme in themes():
        light, dark = sorted((luminance(theme[text]), luminance(theme[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= LEAST_CONTRAST


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@needs_browser
@pytest.mark.parametrize("result", RESULTS)
def test_a_browser_finds_nothing_wrong(result: ResultFn, tmp_path: Any) -> None:
    """From a phone to a desktop nothing is logged, sticks out, is cut off or overlaps."""
    widths = (375, 800, 1100, 1440)
    found = seen(report_page(result(), HEADLINE), widths, tmp_path)
    assert found.logged == []
    assert [row["width"] for row in found.rows] == [width for width in widths for _ in range(2)]
    for row in found.rows:
        assert row["texts"] > 20
        assert (row["overlaps"], row["outside"]) == ([], [])
        assert row["scroll"] <= row["width"]


@needs_browser
def test_a_browser_would_find_it(tmp_path: Any) -> None:
    """The check above can fail: text on text, text beyond the edge, an error."""
    page = (
        "<body><p style='position:absolute;top:0'>below</p><p style='position:absolute;top:0'>over"
        "</p><p style='white-space:nowrap;position:absolute;top:50px'>" + "long " * 99
        + "</p><script>console.error('x')</script>"
    )  # fmt: skip
    found = seen(page, (375,), tmp_path)
    assert found.rows[0]["overlaps"] and found.rows[0]["outside"] and found.logged


@needs_browser
def test_the_page_follows_the_theme(tmp_path: Any) -> None:
    """Where a person prefers dark pages, the background is dark."""
    flag = "--blink-settings=preferredColorScheme="
    grounds = [
        seen(report_page(empty_result(), HEADLINE), (375,), tmp_path / name, flag + number)
        for name, number in (("dark", "0"), ("light", "1"))
        if (tmp_path / name).mkdir() is None
    ]
    dark, light = ([*map(int, re.findall(r"\d+", g.rows[0]["background"]))] for g in grounds)
    assert max(dark) < 60
    assert min(light) > 195
