"""Imports point up the table of parts; third parties stay in theirs; nothing is circular."""

import re
import tomllib
from pathlib import Path

import pytest
from import_graph import (
    PACKAGE,
    ROOT,
    cycle,
    imports_in,
    is_ours,
    part_of,
    product_imports,
    product_modules,
    third_parties,
    violations,
)

IMPORTS = product_imports()
MODULE_EDGES = [(i.importer, i.imported) for i in IMPORTS if is_ours(i.imported)]

# The module that a package installs, where it is not the package's own name.
MODULE_OF = {"nvidia_ml_py": "pynvml", "orbax_checkpoint": "orbax"}


def _broken(source: str, importer: str) -> list[str]:
    return violations(imports_in(source, importer, product_modules()))


def test_imports_point_up_the_table() -> None:
    """Every import of the product obeys the rows and the third-party rules."""
    assert IMPORTS
    assert violations(IMPORTS) == []


def test_no_import_cycle_between_modules() -> None:
    """No module reaches itself through what it imports."""
    assert cycle(MODULE_EDGES) == []


def test_no_import_cycle_between_folders() -> None:
    """No folder reaches itself through the folders it imports."""
    assert cycle((part_of(a), part_of(b)) for a, b in MODULE_EDGES) == []


def test_every_third_party_is_declared() -> None:
    """What the product imports is installed by pyproject.toml, some of it only if asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["tensorboard"]
    names = [re.split(r"[^\w.-]", d)[0].replace("-", "_") for d in declared]
    assert third_parties(IMPORTS) <= {MODULE_OF.get(name, name) for name in names}


def test_two_folder_levels() -> None:
    """Modules sit in the package or one folder below it."""
    assert [m for m in product_modules() if m.count(".") > 2] == []


@pytest.mark.parametrize(
    ("importer", "source", "why"),
    [
        ("schema.plan", "from apss_jax.cost import step", "cost stands below schema"),
        ("schema.plan", "from ..planning import rank", "planning stands below schema"),
        ("cost.step", "def f():\n    import apss_jax.cli", "cli stands below cost"),
        ("cost.step", "import_module('apss_jax.cli.main')", "cli stands below cost"),
        ("cost.step", "from apss_jax import load_model", "__init__ stands below cost"),
        ("schema.plan", "import jax.numpy as jnp", "schema may not use jax"),
        ("partitioning.exact", "def f():\n    import jax", "partitioning may not use jax"),
        ("cost.step", "from pydantic import BaseModel", "cost may not use pydantic"),
        ("planning.rank", "import rich.table", "planning may not use rich"),
        ("trials.running", "import profiler.links", "trials may not use profiler"),
        ("report.page", "import jinja2", "jinja2 is imported inside functions only"),
        ("helpers.text", "import json", "helpers is in no row of the table"),
        ("cost.step", "from apss_jax.helpers import text", "helpers is in no row of the table"),
    ],
)
def test_a_wrong_import_is_caught(importer: str, source: str, why: str) -> None:
    """Each kind of wrong import is reported, with the rule that it breaks."""
    (message,) = _broken(source, f"{PACKAGE}.{importer}")
    assert message.endswith(why)


@pytest.mark.parametrize(
    ("importer", "source"),
    [
        ("cost.step", "import jax\nfrom apss_jax.schema import plan\nfrom apss_jax import units"),
        ("cost.step", "from .memory import stage_memory\nfrom apss_jax import __version__"),
        ("report.page", "def draw():\n    import jinja2\n    import matplotlib.pyplot"),
    ],
)
def test_a_right_import_passes(importer: str, source: str) -> None:
    """Imports that the table allows are not reported."""
    assert _broken(source, f"{PACKAGE}.{importer}") == []


def test_a_cycle_is_caught() -> None:
    """A ring of three is reported by its names, and a ladder is not."""
    assert set(cycle([("a", "b"), ("b", "c"), ("c", "a")])) == {"a", "b", "c"}
    assert cycle([("a", "b"), ("b", "c"), ("a", "c")]) == []


def test_data_files_are_not_modules() -> None:
    """The library holds data: its subfolders carry no Python that a wheel would leave out."""
    inner = [f for f in (ROOT / PACKAGE / "library").rglob("*.py") if f.parent.name != "library"]
    assert inner == list[Path]()
