"""The README's code runs: what a reader copies works, in the order in which it is printed."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from tempfile import TemporaryDirectory

import pytest
from import_graph import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON_BLOCKS = [text for language, text in BLOCKS if language == "python"]
LINES = [
    shlex.split(line, comments=True)
    for language, text in BLOCKS
    if language == "bash"
    for line in text.replace("\\\n", " ").splitlines()
]
COMMANDS = [words for words in LINES if words[:2] == ["python", "-m"]]
TARGETS = {words[1] for words in LINES if words[0] == "make"}


def _names(words: list[str]) -> str:
    return " ".join(words[2:5])


def test_the_readme_starts_with_the_two_commands() -> None:
    """A reader sees first how to get an answer and how to run the tests."""
    assert [words[:2] for words in LINES[:2]] == [["make", "search"], ["make", "test"]]
    assert README.startswith("```bash\n")


def test_every_line_is_checked_here() -> None:
    """No bash line is of a kind that the tests below would pass over."""
    assert all(words[:2] == ["python", "-m"] or words[0] == "make" for words in LINES)
    assert {language for language, _ in BLOCKS} == {"bash", "python", "text"}


def test_make_help_lists_every_target_of_the_readme() -> None:
    """`make help` answers without an installation and names each target."""
    done = subprocess.run(["make", "help"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(re.findall(r"^  make (\w+)", done.stdout, re.MULTILINE)) >= TARGETS | {"help"}


@cache
def _answer(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Returns what a command did, in a folder that is not the checkout."""
    with TemporaryDirectory() as elsewhere:
        return subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            text=True,
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )


@pytest.mark.parametrize("words", COMMANDS, ids=_names)
def test_a_command_answers(words: list[str]) -> None:
    """Each command exits with 0 and prints something."""
    done = _answer(tuple(words))
    assert (done.returncode, done.stderr if done.returncode else "") == (0, "")
    assert done.stdout


def test_what_is_shown_is_what_is_printed() -> None:
    """Titles and names of columns are printed today: lines without figures, sentences aside."""
    printed = "\n".join(_answer(tuple(words)).stdout for words in COMMANDS)
    shown = "\n".join(text for language, text in BLOCKS if language == "text")
    worded = _lines("\n".join(re.findall(r"^[^-.\s\d][^\d\n]*$", shown, re.MULTILINE)))
    assert worded and worded <= _lines(printed)


def _lines(text: str) -> set[tuple[str, ...]]:
    return {tuple(line.split()) for line in text.splitlines()}


@pytest.mark.parametrize("source", PYTHON_BLOCKS)
def test_a_python_block_runs(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each Python block stands on its own and prints what it says."""
    exec(compile(source, "README.md", "exec"), {})
    assert capsys.readouterr().out
