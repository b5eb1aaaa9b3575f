"""What a shell completes, asked of bash itself."""

import shutil
import subprocess

import pytest

from apss_jax.cli.completion import completion_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash is installed")


def completed(line: str) -> list[str]:
    """Returns what bash offers for the last word of a line."""
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _apss_jax"
    code = f'{completion_script()}\n{ask}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run([str(BASH), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("python -m apss_jax.es", ["apss_jax.estimate"]),
        ("python -m apss_jax.search --glob", ["--global-batch"]),
        ("python -m apss_jax.search --model llama-3.1-8", ["llama-3.1-8b"]),
        ("python -m apss_jax.search --solver ex", ["exact"]),
        ("python -m apss_jax.search --json --export to", ["torchtitan"]),
        ("python -m apss_jax.search --out DIR --stack nano", ["nanotron"]),
        ("python -m apss_jax.calibrate --ru", ["--runs"]),
    ],
)
def test_words_are_completed(line: str, offered: list[str]) -> None:
    """Commands, flags, and names of the library."""
    assert completed(line) == offered


@pytest.mark.parametrize(
    "line", ["python -m pytest --ve", "python script.py --js", "python -m apss_jax.search --out f"]
)
def test_the_rest_is_left_to_the_shell(line: str) -> None:
    """Other modules, scripts and files are completed as before."""
    assert completed(line) == []
