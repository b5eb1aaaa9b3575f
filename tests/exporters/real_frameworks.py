"""The frameworks' own readers, from their published packages, run without torch.

`make frameworks` puts the packages into `.venv/frameworks`, without what they depend on; modules
that only compute or hold tensors are stood in for.
"""

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest
from import_graph import ROOT

PACKAGES = ROOT / ".venv" / "frameworks"


class StandIn(ModuleType):
    """A module in which every name is something."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        """Returns a thing of that name, always the same one."""
        if name.startswith("__"):
            raise AttributeError(name)
        made = MagicMock(name=name)
        setattr(self, name, made)
        return made


def file_of(name: str) -> Path:
    """Returns the source of a module of the packages; skips the test where it is not there."""
    path = PACKAGES / f"{name.replace('.', '/')}.py"
    if not path.exists():
        pytest.skip(f"{path.name} is not here: run make frameworks")
    return path


@contextmanager
def loaded(*names: str, standing_in: tuple[str, ...]) -> Iterator[ModuleType]:
    """Yields the last of some modules, loaded in this order beside stand-ins for others."""
    before = dict(sys.modules)
    parents = {name.rpartition(".")[0] for name in (*names, *standing_in)} - {""}
    for name in sorted(parents | set(standing_in)):
        sys.modules[name] = StandIn(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the packages' own, about their own options
            for name in names:
                module = _loaded(name)
            yield module
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


def _loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file_of(name))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def function_of(module: str, name: str, **names: Any) -> Any:
    """Returns one function or method of a module, by its name, with the names that it uses."""
    tree = ast.parse(file_of(module).read_text())
    found = next(
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    space = dict(names)
    exec(compile(ast.Module([found], []), module, "exec"), space)
    return space[name]
