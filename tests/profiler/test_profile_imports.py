"""The profiler stands beside the planner: it writes files, and shares only their form."""

import ast
from pathlib import Path

import pytest
from import_graph import imports_in, product_imports, product_modules, profiler_modules

SHARED = {"schema", "importers", "library", "units", "shapes"}
FILES = list(profiler_modules().values())


def wrong(source: str, importer: str = "profiler.cli") -> list[str]:
    """Returns the imports of the planner's own parts."""
    known = [*product_modules(), *profiler_modules()]
    imported = [one.imported for one in imports_in(source, importer, known)]
    ours = [name for name in imported if name.split(".")[0] == "apss_jax"]
    return [name for name in ours if name.split(".")[1:2] == [] or name.split(".")[1] not in SHARED]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_profiler_uses_only_the_files_form(file: Path) -> None:
    """Schema, importers, library and units; never the cost model whose truth it measures."""
    assert wrong(file.read_text()) == []


def test_a_wrong_import_would_be_seen() -> None:
    """The check above tells a forbidden import, also inside a function."""
    assert wrong("def f():\n    from apss_jax.cost import step") == ["apss_jax.cost.step"]


def test_the_planner_never_imports_the_profiler() -> None:
    """A search needs no GPU and no driver."""
    assert [str(i) for i in product_imports() if i.imported.startswith("profiler")] == []


@pytest.mark.parametrize("name", ["matplotlib"])
def test_drawing_is_imported_where_it_is_used(name: str) -> None:
    """Pictures are rare, and their library is slow to import."""
    for file in FILES:
        tops = [
            node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)
        ]
        assert not [node for node in tops if (node.module or "").startswith(name)]
