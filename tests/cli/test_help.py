"""What `--help` and `--version` say of every command."""

import pytest
import typer

from apss_jax import __version__
from apss_jax.cli import calibrate, estimate, fit, search, train, trial, validate
from apss_jax.cli.run import run

COMMANDS = (search, estimate, validate, calibrate, train, trial, fit)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda module: module.__name__)
def test_help_ends_with_an_example(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of 80 columns with flags that the command has."""
    app = command.app
    assert run(app, ["--help"]) == 0
    title, example = capsys.readouterr().out.rstrip().splitlines()[-2:]
    assert title.strip() == "Example:" and example.strip().startswith(app.info.name)
    assert len(example) <= 80
    known = {flag for option in typer.main.get_command(app).params for flag in option.opts}
    used = [word for word in example.split() if word.startswith("--")]
    assert used and set(used) <= known


@pytest.mark.parametrize("command", COMMANDS[:-1], ids=lambda module: module.__name__)
def test_every_command_has_a_version(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    """The version of the package, and nothing else."""
    assert run(command.app, ["--version"]) == 0
    assert capsys.readouterr().out == f"apss-jax {__version__}\n"
