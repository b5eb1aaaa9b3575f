"""Commands run in this process, as a shell would run them."""

from pathlib import Path

import pytest
from called import CallFn, Done

from apss_jax.cli.estimate import app as estimate_app
from apss_jax.cli.run import run
from apss_jax.cli.search import app as search_app

APPS = {"search": search_app, "estimate": estimate_app}


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CallFn:
    """Returns a function that runs a command with some words, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run_command(command: str, *words: str) -> Done:
        capsys.readouterr()
        code = run(APPS[command], words)
        return Done(code, *capsys.readouterr())

    return run_command
