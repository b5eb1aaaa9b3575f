"""Work in a copy of the process: the same result, and the same errors."""

import os
import subprocess
import sys

import pytest

from apss_jax.planning import aside
from apss_jax.planning.aside import begun_aside

ASIDE = """
import os
from apss_jax.planning.aside import begun_aside
wait = begun_aside(os.getpid)
print(wait() != os.getpid())
"""
ABANDONED = """
import os
from apss_jax.planning.aside import begun_aside
def large():
    print("begun", flush=True)
    return bytes(10_000_000)
begun_aside(large)
os._exit(0)  # before anything is read
"""


def printed(code: str) -> str:
    """Returns what a process of its own prints; it says nothing else."""
    asked = [sys.executable, "-c", code]
    found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
    assert not found.stderr
    return found.stdout.strip()


@pytest.fixture
def _copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_can_be_copied", lambda: True)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has nothing to share")
def test_a_fresh_process_is_copied() -> None:
    """Before JAX is imported, the function runs in another process."""
    assert printed(ASIDE) == "True"


def test_what_comes_before_jax_imports_none() -> None:
    """A question is loaded and its layouts are bounded without it."""
    assert (
        printed("import sys, apss_jax.planning.beginning; print('jax' in sys.modules)") == "False"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has nothing to share")
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


@pytest.mark.usefixtures("_copied")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
def test_the_result_comes_back() -> None:
    """What the copy finds is what the function returns, large or small."""
    assert begun_aside(lambda: list(range(100_000)))() == list(range(100_000))


@pytest.mark.usefixtures("_copied")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is copied")
def test_what_is_wrong_is_raised_here() -> None:
    """An error in the copy is met again where it can be told."""

    def wrong() -> None:
        raise ValueError("no layout")

    wait = begun_aside(wrong)
    with pytest.raises(ValueError, match="no layout"):
        wait()
