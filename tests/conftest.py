"""Strict settings for every test, and places to write that are not the user's.

JAX reads its flags from the environment when it is first imported, so they hold in every test and
every subprocess, and a test that needs no JAX does not import it.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from import_graph import product_modules, profiler_modules
from jaxtyping import install_import_hook

STRICT_JAX = {
    # Two arrays of different rank are aligned on purpose or not at all.
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    # Two workers that each reserve most of a GPU's memory would fail on a machine that has one.
    "JAX_PLATFORMS": "cpu",
}

settings.register_profile("apss", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("apss")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the environment; workers inherit it, so that they share one compilation cache."""
    install_import_hook(_shaped_modules(), "beartype.beartype")
    if _is_worker(config):
        return
    cache = Path(tempfile.mkdtemp(prefix="apss-test-cache-"))
    config.stash[_CACHE] = cache
    os.environ.update(STRICT_JAX)
    os.environ["XDG_CACHE_HOME"] = str(cache)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache / "jax")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the compilation cache once every worker has ended."""
    if not _is_worker(config):
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


def _shaped_modules() -> list[str]:
    """Returns the modules whose array shapes are checked at every call while tests run.

    A module that numba compiles is left out: numba reads a function's source, not its wrapper.
    """
    modules = {**product_modules(), **profiler_modules()}
    texts = {name: file.read_text() for name, file in modules.items()}
    return [name for name, text in texts.items() if "jaxtyping" in text and "numba" not in text]


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


_CACHE = pytest.StashKey[Path]()
