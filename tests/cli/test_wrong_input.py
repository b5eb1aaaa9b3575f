"""Wrong input is answered with exit code 2 and one message, never with a traceback."""

import shlex
from pathlib import Path

import pytest
from called import CallFn
from wrong_inputs import (
    CLUSTERS,
    FLAGS,
    GPT2,
    ILLEGAL,
    MODELS,
    PLANS,
    Wrong,
    write_files,
)

CASES = [
    *(("search", wrong) for wrong in (*MODELS, *CLUSTERS, *FLAGS)),
    *(("estimate", wrong) for wrong in PLANS),
]
FIELDS = {"file", "key", "value", "rule", "remedy"}


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with every wrong file in it."""
    folder = tmp_path_factory.mktemp("wrong")
    write_files(folder)
    return folder


@pytest.mark.parametrize(("command", "wrong"), CASES, ids=lambda part: str(part[0]))
def test_wrong_input_gives_one_error_document(
    call: CallFn, bad_files: Path, monkeypatch: pytest.MonkeyPatch, command: str, wrong: Wrong
) -> None:
    """With --json stdout holds one document that names the key, the rule and the remedy."""
    monkeypatch.chdir(bad_files)
    done = call(command, "--json", *shlex.split(wrong.words))
    errors = done.document["errors"]
    assert (done.code, done.document["schema"]) == (2, "apss.error/1")
    assert wrong.key in [error["key"] for error in errors], errors
    assert all(set(error) == FIELDS and error["rule"] and error["remedy"] for error in errors)


@pytest.mark.parametrize(("command", "wrong"), CASES, ids=lambda part: str(part[0]))
def test_wrong_input_gives_one_message(
    call: CallFn, bad_files: Path, monkeypatch: pytest.MonkeyPatch, command: str, wrong: Wrong
) -> None:
    """Without it stdout stays empty, and stderr holds short lines that begin with Error."""
    monkeypatch.chdir(bad_files)
    done = call(command, *shlex.split(wrong.words))
    lines = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert lines
    assert all(line.startswith("Error: ") for line in lines)
    assert max(map(len, lines)) < 2000


@pytest.mark.parametrize(
    ("command", "words", "word"),
    [
        ("search", "--model gpt2 --cluster old_cluster.json --global-batch 8", "older"),
        ("search", "--model gpt2 --cluster next_cluster.json --global-batch 8", "newer"),
        ("search", "--model next_schema.json --cluster 1x1xT4 --global-batch 8", "newer"),
        ("estimate", f"{GPT2} --plan next_plan.json", "newer"),
        ("estimate", f"{GPT2} --plan next_result.json", "newer"),
        ("estimate", f"{GPT2} --plan old_estimate.json", "older"),
    ],
)
def test_a_file_of_another_version_says_so(
    call: CallFn, bad_files: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str,
    word: str,
) -> None:  # fmt: skip
    """One message says whether the file is older or newer, and to write it again."""
    monkeypatch.chdir(bad_files)
    (error,) = call(command, "--json", *words.split()).document["errors"]
    assert error["key"] == "schema" and f"is {word} than this version" in error["rule"]
    assert "write the file again" in error["remedy"]


@pytest.mark.parametrize("words", ILLEGAL)
def test_values_that_no_layout_has_are_wrong_input(call: CallFn, words: str) -> None:
    """Where no layout is legal, the rule in the way is told; exit code 3 is for memory alone."""
    done = call("search", "--json", *GPT2.split(), *words.split())
    errors = done.document["errors"]
    assert (done.code, done.document["schema"]) == (2, "apss.error/1")
    assert any(ILLEGAL[words] in error["rule"] for error in errors), errors
