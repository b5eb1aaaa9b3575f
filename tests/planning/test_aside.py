"""Work in a copy of the process: the same result, the same errors, and nothing left behind."""

import os
import subprocess
import sys

import pytest

from apss_jax.planning.aside import begun_aside

is_copied = pytest.mark.skipif(
    sys.platform != "linux" or os.cpu_count() == 1, reason="nothing is copied here"
)
ELSEWHERE = "print(begun_aside(os.getpid)() != os.getpid())"
LARGE = "print(begun_aside(lambda: list(range(100_000)))() == list(range(100_000)))"
WRONG = """
def wrong():
    raise ValueError("no layout")
wait = begun_aside(wrong)
try:
    wait()
except ValueError as error:
    print(error)
"""
ABANDONED = """
def large():
    print("begun", flush=True)
    return bytes(10_000_000)
begun_aside(large)
os._exit(0)  # before anything is read
"""


def printed(code: str) -> str:
    """Returns what a process of its own prints; it says nothing else."""
    asked = [sys.executable, "-c", f"import os\nfrom apss_jax.planning.aside import *\n{code}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert not found.stderr
    return found.stdout.strip()


@is_copied
def test_a_fresh_process_is_copied() -> None:
    """Before JAX is imported, the function runs in another process."""
    assert printed(ELSEWHERE) == "True"


@is_copied
def test_the_result_comes_back() -> None:
    """What the copy finds is what the function returns, also where a pipe takes it in parts."""
    assert printed(LARGE) == "True"


@is_copied
def test_what_is_wrong_is_raised_here() -> None:
    """An error in the copy is met again where it can be told."""
    assert printed(WRONG) == "no layout"


@is_copied
def test_an_abandoned_copy_ends() -> None:
    """A copy whose result nobody will read does not stay behind."""
    assert printed(ABANDONED) == "begun"  # after all that may print has ended


def test_a_process_with_jax_is_not_copied() -> None:
    """Its threads would be missing in the copy: the function runs here, when it is asked for."""
    import jax  # noqa: F401

    ran = []
    wait = begun_aside(lambda: ran.append(os.getpid()))
    assert not ran
    wait()
    assert ran == [os.getpid()]


def test_what_comes_before_jax_imports_none() -> None:
    """A question is loaded and its layouts are bounded without it."""
    code = "import sys, apss_jax.planning.beginning\nprint('jax' in sys.modules)"
    assert printed(code) == "False"
