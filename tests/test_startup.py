"""What a first import and `--help` cost: neither imports JAX, numba or a drawing library."""

import os
import subprocess
import sys

import pytest
from import_graph import ROOT

HEAVY = {"jax", "jaxlib", "flax", "optax", "numba", "scipy", "orbax", "matplotlib", "jinja2"}
LIST_MODULES = "import sys; print('\\n'.join(sys.modules), file=sys.stderr)"
RUN_HELP = f"""
import atexit, runpy, sys
sys.argv = [{{module!r}}, "--help"]
atexit.register(lambda: exec({LIST_MODULES!r}))
runpy.run_module({{module!r}}, run_name="__main__")
"""


def _run(code: str) -> tuple[str, set[str]]:
    """Returns what a fresh interpreter printed and the top-level packages it had imported."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    return done.stdout, {line.split(".")[0] for line in done.stderr.splitlines()}


def test_import_is_light() -> None:
    """`import apss_jax` imports no heavy package."""
    _, imported = _run(f"import apss_jax; {LIST_MODULES}")
    assert "apss_jax" in imported
    assert imported & HEAVY == set()


def test_a_heavy_import_would_be_seen() -> None:
    """The check above can fail: a program that does import numba is told apart."""
    _, imported = _run(f"import apss_jax, numba; {LIST_MODULES}")
    assert "numba" in imported & HEAVY


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("search", "--global-batch"),
        ("estimate", "--global-batch"),
        ("validate", "--runs"),
        ("calibrate", "--runs"),
        ("train", "--objective"),
        ("trial", "--plan"),
        ("cli.fit", "--dry-run"),
    ],
)
def test_help_is_light(command: str, flag: str) -> None:
    """`--help` prints the usage without importing a heavy package."""
    printed, imported = _run(RUN_HELP.format(module=f"apss_jax.{command}"))
    assert flag in printed
    assert imported & HEAVY == set()
