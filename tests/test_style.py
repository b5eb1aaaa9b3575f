"""The bands that the linter does not measure: lengths, and axes that are fixed words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from import_graph import product_modules, profiler_modules

from apss_jax.shapes import AXES

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
DTYPES = {"Array", "Float", "Float32", "Float64", "Int", "Int32", "Int64", "Integer", "Bool", "Num"}

FILES = [*product_modules().values(), *profiler_modules().values()]


def _nodes(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, kind):
                yield file, node


def _shape_words(node: ast.Subscript) -> set[str]:
    """Returns the axis words of `Float[Array, "words"]`, or nothing for another subscript."""
    if not (isinstance(node.value, ast.Name) and node.value.id in DTYPES):
        return set()
    shapes = [e.value for e in getattr(node.slice, "elts", []) if isinstance(e, ast.Constant)]
    return {word for shape in shapes for word in re.findall(r"[a-z]\w*", str(shape))}


def test_files_are_short() -> None:
    """No module is longer than a person reads in one sitting."""
    assert [str(f) for f in FILES if len(f.read_text().splitlines()) > MAX_FILE_LINES] == []


def test_functions_are_short() -> None:
    """No function is longer than a screen."""
    found = [(file, node) for file, node in _nodes(ast.FunctionDef)]
    lengths = {f"{file}:{node.name}": node.end_lineno - node.lineno + 1 for file, node in found}
    assert lengths
    assert [name for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES] == []


def test_axes_are_fixed_words() -> None:
    """Every shape in an annotation is made of the words that `shapes` lists."""
    words = {(str(f), word) for f, node in _nodes(ast.Subscript) for word in _shape_words(node)}
    assert words
    assert {(file, word) for file, word in words if word not in AXES} == set()
