"""Documents that name files, targets and layers name ones that exist."""

import re

import pytest
from import_graph import ROOT, ROWS

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/calibration.md",
    "docs/cost-model.md",
    "docs/dpsn.md",
    "docs/exports.md",
    "docs/glossary.md",
    "docs/links.md",
    "docs/report.md",
    "docs/trial.md",
    "docs/profiler.md",
]


def _text(document: str) -> str:
    return (ROOT / document).read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_paths_exist(document: str) -> None:
    """A path in code quotes or behind a link is in the repository."""
    quoted = re.findall(
        r"`((?:apss_jax|profiler|tests|docs|benchmarks|\.ci)/[\w./-]*)`", _text(document)
    )
    linked = re.findall(r"\]\((?!https?:)([^)#]+)\)", _text(document))
    linked_from_root = [(ROOT / document).parent / link for link in linked]
    missing = [p for p in [*(ROOT / q for q in quoted), *linked_from_root] if not p.exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_make_targets_exist(document: str) -> None:
    """A make target in a document is one that the Makefile has."""
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", _text(document), re.MULTILINE))
    assert named <= set(re.findall(r"^([a-z]+):", _text("Makefile"), re.MULTILINE))


def test_the_layer_table_is_the_tested_one() -> None:
    """The architecture's table lists the rows that the layer test holds, in their order."""
    section = _text("docs/architecture.md").split("## Layers")[1].split("## Seams")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert [tuple(re.findall(r"`(\w+)`", cell)) for cell in cells] == list(ROWS)
