"""Kept programs: what was traced is read back in another process, and damage does no harm."""

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from apss_jax.cost import traced
from apss_jax.cost.traced import KeptProgram


class Pair(NamedTuple):
    """Two arrays."""

    left: np.ndarray
    right: np.ndarray


PAIR = Pair(np.array([1.0, 2.0], np.float32), np.array([10, 20], np.int32))


class Traces:
    """A program that counts how often it is traced."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, pair: Pair) -> Pair:
        """Returns the sum and the difference."""
        self.count += 1
        return Pair(pair.left + pair.right, pair.left - pair.right)


def kept(count: Traces, tuples: tuple[type, ...] = ()) -> KeptProgram:
    """Returns the program as a new process has it; a type is registered once."""

    def both(pair: Pair) -> Pair:
        return count(pair)

    return KeptProgram(jax.jit(both), {}, tuples)


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    kept(Traces(), (Pair,))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps programs in a folder of the test's own."""
    monkeypatch.setattr(traced, "kept_folder", lambda: tmp_path / "traced")
    return tmp_path / "traced"


def check(found: Pair) -> None:
    """Checks the sum and the difference of `PAIR`."""
    assert isinstance(found, Pair)
    np.testing.assert_array_equal(found.left, [1 + 10, 2 + 20])
    np.testing.assert_array_equal(found.right, [1 - 10, 2 - 20])


def test_a_kept_program_is_traced_once(folder: Path) -> None:
    """Another process reads what the first one traced, and computes the same."""
    first, second = Traces(), Traces()
    check(kept(first)(PAIR))
    check(kept(second)(PAIR))
    assert (first.count, second.count) == (1, 0)
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("folder")
def test_other_shapes_are_another_program() -> None:
    """Arrays of other shapes or types are traced by themselves."""
    traces = Traces()
    program = kept(traces)
    program(PAIR)
    program(PAIR)
    assert traces.count == 1
    program(Pair(PAIR.left[:1], PAIR.right[:1]))
    program(PAIR._replace(right=PAIR.left))
    assert traces.count == 3


@pytest.mark.parametrize("damage", [lambda b: b[:-7], lambda b: b"", lambda b: b[:40] + b"\0" * 9])
def test_a_damaged_file_is_written_again(folder: Path, damage: object) -> None:
    """A cut or overwritten file counts as missing."""
    check(kept(Traces())(PAIR))
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = Traces()
    check(kept(again)(PAIR))
    assert again.count == 1
    assert file.stat().st_size > len(damage(whole))


def test_a_changed_source_is_traced_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other code traced is not read."""
    kept(Traces())(PAIR)
    monkeypatch.setattr(traced, "_sources_digest", lambda: "other")
    again = Traces()
    check(kept(again)(PAIR))
    assert again.count == 1
    assert len(list(folder.iterdir())) == 2


def test_programs_used_last_are_read_ahead(folder: Path) -> None:
    """A process that reads one program ahead has the one that was called last, by any process."""
    small = Pair(PAIR.left[:1], PAIR.right[:1])
    for pair in (PAIR, small, PAIR):
        kept(Traces())(pair)
    files = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert len(files) == 2
    program = kept(Traces())
    program.load_latest(1)
    for file in files:
        file.unlink()
    check(program(PAIR))
    assert not list(folder.iterdir())
    program(small)
    assert len(list(folder.iterdir())) == 1


def test_threads_share_a_program(folder: Path) -> None:
    """Several threads that ask at once trace and compile it once."""
    traces = Traces()
    program = kept(traces)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(program, [PAIR] * 8):
            check(found)
    assert traces.count == 1
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_does_no_harm(folder: Path) -> None:
    """The program runs, and nothing is kept."""
    folder.write_text("a file where the folder should be")
    check(kept(Traces())(PAIR))


def test_a_library_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the commands' consent the program is an ordinary jitted function."""
    monkeypatch.setattr(traced, "kept_folder", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check(kept(Traces())(PAIR))
    assert not list(tmp_path.iterdir())


def test_all_that_is_traced_is_in_the_digest() -> None:
    """What the cost imports of the product lies where sources are read for the digest."""
    package = Path(traced.__file__).parents[1]
    imported = {
        node.module
        for folder in ("cost", "policy")
        for file in package.glob(f"{folder}/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apss_jax.")
    }
    assert {"apss_jax.cost.memory", "apss_jax.policy.decode"} <= imported
    parts = {name.split(".")[1] for name in imported}
    folders = {f"{part}/" if (package / part).is_dir() else "" for part in parts}
    assert folders - {"schema/"} <= set(traced.TRACED)  # what files look like is not traced
