"""Compiled code is kept where it can be kept, and made anew where it cannot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import apss_jax

SOLVE = (
    "import numpy, apss_jax;"
    "print(apss_jax.partition(numpy.ones((1, 4)), numpy.zeros((1, 3, 1)), num_stages=2))"
)


@pytest.fixture
def sealed_package(tmp_path: Path) -> Path:
    """Returns a folder with our package in which numba cannot make its cache folder."""
    source = Path(apss_jax.__file__).parent
    copy = tmp_path / "site" / "apss_jax"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "partitioning" / "__pycache__").write_text("a file, so no folder, for root too")
    return copy.parent


def _solve(package: Path, cache: Path) -> str:
    homes = {"XDG_CACHE_HOME": str(cache), "HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    command, environment = [sys.executable, "-c", SOLVE], os.environ | homes
    return subprocess.check_output(command, cwd=package, env=environment, text=True).strip()


@pytest.mark.slow
def test_user_cache_takes_over(sealed_package: Path, tmp_path: Path) -> None:
    """A package that cannot be written to is cached in the user's cache folder."""
    assert _solve(sealed_package, tmp_path / "cache") == "[[1]]"
    assert list((tmp_path / "cache").rglob("*.nbi"))


@pytest.mark.slow
def test_no_cache_at_all(sealed_package: Path, tmp_path: Path) -> None:
    """Where nothing can be written it compiles in memory and answers the same."""
    (tmp_path / "cache").write_text("a file")
    assert _solve(sealed_package, tmp_path / "cache") == "[[1]]"


def _kept(cache: Path) -> set[str]:
    return {index.name for index in cache.rglob("*.nbi")}


@pytest.mark.slow
def test_edit_of_shared_kernels(sealed_package: Path, tmp_path: Path) -> None:
    """An entry is compiled anew when a file that it takes functions from has changed."""
    _solve(sealed_package, tmp_path / "cache")
    before = _kept(tmp_path / "cache")
    _solve(sealed_package, tmp_path / "cache")
    assert _kept(tmp_path / "cache") == before
    shared = sealed_package / "apss_jax" / "partitioning" / "search_kernels.py"
    shared.write_text(shared.read_text() + "# Another version.\n")
    assert _solve(sealed_package, tmp_path / "cache") == "[[1]]"
    assert len(_kept(tmp_path / "cache")) == 2 * len(before)
