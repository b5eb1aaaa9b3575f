"""Every reported case of the classes C to F has a test that names it."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ORIGINALS = HERE.parents[2] / "shared" / "data" / "cases"
FILES = ("accepted", "uneven", "mixed", "config")


def named(text: str) -> set[str]:
    """Returns the cases that docstrings of tests begin with."""
    starts = re.findall(r'"""((?:[C-F]\d\d(?:, | and )?)+):', text)
    return {case for start in starts for case in re.findall(r"[C-F]\d\d", start)}


@pytest.mark.skipif(not ORIGINALS.exists(), reason="the collection is not here")
def test_every_case_is_named() -> None:
    """Each file of the collection stands at the head of a test's docstring."""
    texts = [(HERE / f"test_{name}_cases.py").read_text() for name in FILES]
    tested = set().union(*map(named, texts))
    assert {file.stem for file in ORIGINALS.glob("[C-F]*.json")} - tested == set()


def test_a_missing_case_is_seen() -> None:
    """The look above finds what is there and nothing else."""
    assert named('def test_x() -> None:\n    """C01, F02: words."""') == {"C01", "F02"}
    assert named('"""Words about C01."""') == set()
