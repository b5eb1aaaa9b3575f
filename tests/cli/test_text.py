"""What people read: the figures of the document, in 80 columns, the same each time."""

import re
from io import StringIO

import pytest
from samples import BROKEN, NOTHING, PLAN, RESULT, WIDEST, console, written

from apss_jax.cli.estimate_text import show_estimate, verdict
from apss_jax.cli.run import _print_text
from apss_jax.cli.search_text import show_search
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.planning import heuristics
from apss_jax.report.plan_words import REASONS
from apss_jax.schema.plan import Estimate, SearchResult

MODEL = load_model("llama-3.1-8b")
CLUSTER = load_cluster("2x8xH100-SXM5-80GB")
STYLE = re.compile(r"\x1b\[[\d;]*m")
COLOUR = re.compile(r"\x1b\[(?:\d;)*(?:3[0-7]|9[0-7]|38;)")
WIDE = RESULT.model_copy(update={"plans": (PLAN, WIDEST), "warnings": ("w" * 200,)})


def _search_text(result: SearchResult) -> str:
    target = console()
    show_search(result, MODEL, CLUSTER, target)
    return written(target)


def _estimate_text(estimate: Estimate) -> str:
    target = console()
    show_estimate(estimate, MODEL, CLUSTER, target)
    return written(target)


@pytest.mark.parametrize(
    "words",
    [
        "llama-3.1-8b (8.03 B parameters, 32 layers) on 2x8xH100-SXM5-80GB (16 devices)",
        "global batch 256, sequence length 4096, precision bf16, stack generic",
        "1.60-2.50 s",
        "512 k",
        "60.0/80.0",
        "emb+0-15",
        "16-31+head",
        "8-15",
        "Tensor groups stay inside a node.",
        "60 legal layouts; 40 of those that were costed fit in memory",
        "        30 needless_recompute less recomputation fits too",
        "        10 batch",
    ],
)
def test_a_search_shows(words: str) -> None:
    """Question, interval, speed, memory, stages, reasons and counts are all there."""
    assert words in _search_text(RESULT)


@pytest.mark.parametrize("result", [RESULT, WIDE, NOTHING], ids=["usual", "widest", "nothing"])
def test_a_search_fits_80_columns(result: SearchResult) -> None:
    """No line is wider, whatever the degrees, and no figure is cut off."""
    text = _search_text(result)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_of_a_deep_pipeline_the_ends_and_the_fullest_stage_are_shown() -> None:
    """128 stages take 13 lines and two gaps; the document has them all."""
    deep = RESULT.model_copy(update={"plans": (WIDEST,)})
    table = _search_text(deep).split("Stages of plan 1")[1].split("Where the step")[0]
    numbers = [line.split()[0] for line in table.splitlines()[2:] if line.strip()]
    shown = [n for n in numbers if n.isdigit() and not n.startswith("+")]
    assert {"0", "5", "122", "127"} <= set(shown)
    assert ".." in numbers
    assert "64" not in shown


def test_each_reason_of_a_search_is_told_in_words() -> None:
    """Whatever the policy or the search counts as dropped has its sentence."""
    counted = {reason.__name__ for reason in heuristics.REASONS}
    counted |= {"cannot_win", "no_partition_fits", "cannot_be_placed", "search_budget"}
    assert counted <= set(REASONS)


def test_nothing_that_fits_says_what_is_missing() -> None:
    """Without a plan the text names the bytes, the devices and the smallest change."""
    text = _search_text(NOTHING)
    assert "needs 2.5 GiB more on a device" in text
    assert "smallest change that would fit: recompute full" in text
    assert "8 more devices" in text


def test_an_estimate_begins_with_the_verdict() -> None:
    """Legal, fits, fast: three lines, the fullest stage named."""
    assert verdict(Estimate(legal=True, plan=PLAN)) == [
        ("Legal", "yes"),
        ("Fits", "yes: stage 0 is the fullest, 60.0/80.0 GiB, P(OOM) <1 %"),
        ("Speed", "2.00 s per step, 80 % interval 1.60-2.50 s"),
        ("", "512 k tokens/s, MFU 41 %, bubble 15 %"),
    ]


def test_an_illegal_plan_is_told_so() -> None:
    """Each broken rule is there in words; what could not be costed is not known."""
    text = _estimate_text(BROKEN)
    assert "Legal no\n      heads: 32 heads do not divide by tensor parallel 5\n" in text
    assert "Speed not known" in text


def test_the_breakdown_shows_each_part() -> None:
    """1.0 of 2.0 s of compute is 50 %."""
    rows = [line.split() for line in _estimate_text(Estimate(legal=True, plan=PLAN)).splitlines()]
    assert ["compute", "1.00", "s", "50", "%", "[####....]"] in rows
    assert ["optimizer", "100", "ms", "5", "%", "[........]"] in rows


def test_same_input_same_text() -> None:
    """Nothing in the text depends on the clock or on the order of a set."""
    assert _search_text(WIDE) == _search_text(WIDE)


@pytest.mark.parametrize("width", [80, 120])
def test_a_search_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal lines are as long as it is wide, at most; nothing is cut off."""
    text = _on_terminal(monkeypatch, COLUMNS=str(width), NO_COLOR="1")
    lines = [STYLE.sub("", line) for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in text


def test_colours_are_never_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR a terminal gets the same words without colours; otherwise bars have them."""
    plain = _on_terminal(monkeypatch, COLUMNS="80", NO_COLOR="1")
    coloured = _on_terminal(monkeypatch, COLUMNS="80")
    assert not COLOUR.search(plain)
    assert COLOUR.search(coloured)
    assert STYLE.sub("", coloured) == STYLE.sub("", plain)


def test_plans_that_are_not_first_say_why() -> None:
    """What bounds them, what memory forbids, and what they would have to save."""
    said = ("bound by compute: of 2 s", "to win it would have to save 1 s", "something else")
    second = PLAN.model_copy(update={"rank": 2, "explanation": said})
    text = _search_text(RESULT.model_copy(update={"plans": (PLAN, second)}))
    told = text.split("Why plan 2 is not first")[1]
    assert "bound by compute" in told and "to win" in told
    assert "something else" not in told


class Terminal(StringIO):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        """Says so."""
        return True


def _on_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> str:
    """Returns what a terminal gets of the widest search."""
    screen = Terminal()
    with monkeypatch.context() as patch:
        for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR"):
            patch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", **environment}.items():
            patch.setenv(name, value)
        patch.setattr("sys.stdout", screen)
        _print_text(lambda target: show_search(WIDE, MODEL, CLUSTER, target))
    return screen.getvalue()
