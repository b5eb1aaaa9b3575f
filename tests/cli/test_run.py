"""How a command ends: exit codes, streams, files, interrupts; planning is replaced here."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from called import CallFn
from import_graph import ROOT
from samples import NOTHING, RESULT

from apss_jax import __version__
from apss_jax.cli.run import Answer, new_app, run
from apss_jax.planning.clock import Clock
from apss_jax.schema.plan import SearchResult

FILES = ("result.json", "plan.json")
AnswerWithFn = Callable[[SearchResult], dict[str, Any]]


@pytest.fixture
def answer_with(monkeypatch: pytest.MonkeyPatch) -> AnswerWithFn:
    """Returns a function that makes every search give one result; it returns what was asked."""

    def replace(result: SearchResult) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def gather_inputs(model: str, cluster: str, **options: Any) -> None:
            asked.update(options, model=model, cluster=cluster)

        def begin_search(_: None, __: Clock, **options: Any) -> None:
            asked.update(options)

        def finish_search(_: None, progress: Callable[[str], None]) -> SearchResult:
            progress("halfway")
            return result

        gathered = SimpleNamespace(gather_inputs=gather_inputs)
        monkeypatch.setitem(sys.modules, "apss_jax.planning.inputs", gathered)
        begun = SimpleNamespace(begin_search=begin_search)
        monkeypatch.setitem(sys.modules, "apss_jax.planning.beginning", begun)
        finished = SimpleNamespace(finish_search=finish_search)
        monkeypatch.setitem(sys.modules, "apss_jax.planning.search", finished)
        drawn = SimpleNamespace(with_detail=lambda model, cluster, found, stack: found)
        monkeypatch.setitem(sys.modules, "apss_jax.planning.detail", drawn)
        return asked

    return replace


def test_a_search_without_arguments_asks_the_defaults(
    call: CallFn, answer_with: AnswerWithFn
) -> None:
    """What --help states is what is asked."""
    asked = answer_with(RESULT)
    help_text = " ".join(call("search", "--help").out.split())
    assert call("search").code == 0
    for name in ("model", "cluster", "global_batch", "solver", "top"):
        assert f"[default: {asked[name]}]" in help_text
    assert asked["pins"] is None


def test_flags_reach_the_search(call: CallFn, answer_with: AnswerWithFn) -> None:
    """Each flag is the argument of its name; pins go by the full names of fields."""
    asked = answer_with(RESULT)
    words = "--seq-len 2048 --precision BF16 --stack generic --solver uniform --top 3"
    pins = "--pin tp=4,8 --pin micro-batch=2 --pin sp=on --pin recompute=full --pin zero=0"
    assert call("search", *words.split(), *pins.split()).code == 0
    assert (asked["seq_len"], asked["precision"], asked["stack"]) == (2048, "bf16", "generic")
    assert (asked["solver"], asked["top"]) == ("uniform", 3)
    assert asked["pins"] == {
        "tensor_parallel": (4, 8),
        "micro_batch": (2,),
        "sequence_parallel": (True,),
        "recompute": ("full",),
        "zero_stage": (0,),
    }


def test_results_and_notes_have_a_stream_each(call: CallFn, answer_with: AnswerWithFn) -> None:
    """Progress and times go to stderr, so that stdout is the same each time."""
    answer_with(RESULT)
    done, again = call("search"), call("search")
    assert done.err.splitlines()[0] == "halfway"
    assert "Took total 1.00 s" in done.err
    assert "halfway" not in done.out
    assert done.out == again.out


def test_json_is_one_document(call: CallFn, answer_with: AnswerWithFn) -> None:
    """With --json stdout is the document that the result writes of itself."""
    answer_with(RESULT)
    assert call("search", "--json").document == json.loads(json.dumps(RESULT.to_json()))


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_no_plan_is_exit_code_3(call: CallFn, answer_with: AnswerWithFn, words: list[str]) -> None:
    """Where nothing fits, the answer is printed all the same."""
    answer_with(NOTHING)
    done = call("search", *words)
    assert done.code == 3
    assert "recompute full" in done.out


def test_out_writes_the_result_and_the_first_plan(
    call: CallFn, answer_with: AnswerWithFn, tmp_path: Path
) -> None:
    """Both files are the documents; stderr says where they are."""
    answer_with(RESULT)
    done = call("search", "--out", "new/folder")
    written = [json.loads((tmp_path / "new/folder" / n).read_text()) for n in FILES]
    assert written == [json.loads(json.dumps(d.to_json())) for d in (RESULT, RESULT.plans[0])]
    assert "Wrote new/folder/result.json, new/folder/plan.json" in done.err


def test_out_replaces_nothing_without_force(call: CallFn, answer_with: AnswerWithFn) -> None:
    """The second search is refused before it starts; --force lets it through."""
    answer_with(RESULT)
    codes = [call("search", "--out", "d", *more).code for more in ((), (), ("--force",))]
    assert codes == [0, 2, 0]


def test_force_leaves_no_older_plan(
    call: CallFn, answer_with: AnswerWithFn, tmp_path: Path
) -> None:
    """A search without a plan does not leave the plan of an older one beside its result."""
    answer_with(RESULT)
    call("search", "--out", "d")
    answer_with(NOTHING)
    assert call("search", "--out", "d", "--force").code == 3
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "report.html",
        "result.json",
    ]


def test_no_colour_outside_a_terminal(call: CallFn, answer_with: AnswerWithFn) -> None:
    """A file or a pipe gets no escape codes."""
    answer_with(RESULT)
    assert "\x1b" not in call("search").out


def test_version(call: CallFn) -> None:
    """--version prints one line."""
    assert call("search", "--version").out == f"apss-jax {__version__}\n"
    assert call("estimate", "--version").code == 0


def test_an_interrupt_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends a command with 130 and without a word."""

    def interrupted() -> Answer:
        raise KeyboardInterrupt

    assert run(new_app(interrupted, "apss_jax.search", ""), []) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_hidden() -> None:
    """What is not a user's mistake keeps its traceback."""

    def broken() -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(new_app(broken, "apss_jax.search", ""), [])


def _shell(script: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env=env, check=False
    )


def test_a_closed_pipe_is_quiet() -> None:
    """A reader that goes away ends the command without a message."""
    estimate = "$PYTHON -m apss_jax.estimate --json --tp 0"
    done = _shell(f"(sleep 0.5; {estimate}; echo code $? >&2) | true")
    assert done.stderr == "code 141\n"


def test_a_process_ends_with_the_code() -> None:
    """The entry points hand the exit code to the shell, and print no traceback."""
    done = _shell("$PYTHON -m apss_jax.search --top 0; echo code $?")
    assert done.stdout == "code 2\n"
    assert done.stderr.startswith("Error: --top is 0: ")
