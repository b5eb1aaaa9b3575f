"""What the product's modules import, read from their source, and the rules those imports obey."""

import ast
import sys
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "apss_jax"
FACE = "__init__"

# Top to bottom: a row may use the rows above it and itself.
ROWS: tuple[tuple[str, ...], ...] = (
    ("units", "shapes", "native"),
    ("schema",),
    ("library",),
    ("importers",),
    ("datasheet",),
    ("legality",),
    ("problem", "strategy"),
    ("cost",),
    ("partitioning",),
    ("policy",),
    ("training",),
    ("planning",),
    ("calibration", "trials"),
    ("exporters", "report"),
    ("cli",),
    ("search", "estimate", "validate", "calibrate", "train", "trial"),
    (FACE,),
)
ROW_OF = {part: row for row, parts in enumerate(ROWS) for part in parts}
PARTS = frozenset(ROW_OF)

TRACED = frozenset({"problem", "strategy", "cost", "policy", "training"})
JAX_USERS = TRACED | {"planning", "calibration", "trials"}
NOBODY: frozenset[str] = frozenset()
JAX = frozenset({"jax", "jaxlib", "flax", "optax", "orbax"})

# Which parts may import a third party at all; one that is not listed here may be imported anywhere.
USERS: dict[str, Set[str]] = {
    **dict.fromkeys(JAX, JAX_USERS),
    "pydantic": PARTS - TRACED - {"partitioning"},
    "typer": {"cli"},
    "rich": {"cli"},
    "safetensors": {"policy", "training"},
    "tensorboardX": {"training"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    **dict.fromkeys(("profiler", "pytest", "hypothesis", "beartype", "chex"), NOBODY),
}
LAZY_ONLY = frozenset({"matplotlib", "jinja2", "orbax", "safetensors", "tensorboardX"})


@dataclass(frozen=True)
class Import:
    """One import statement: who imports what, and whether it runs only inside a function."""

    importer: str
    imported: str
    in_function: bool

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported}"


def product_modules() -> dict[str, Path]:
    """Returns the file of every module of the product, by dotted name."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {_dotted(file.relative_to(ROOT)): file for file in files}


def profiler_modules() -> dict[str, Path]:
    """Returns the file of every module of the profiler, which stands beside the product's."""
    files = sorted((ROOT / "profiler").rglob("*.py"))
    return {_dotted(file.relative_to(ROOT)): file for file in files}


def product_imports() -> list[Import]:
    """Returns every import in the product."""
    modules = product_modules()
    return [
        found
        for name, file in modules.items()
        for found in imports_in(file.read_text(), name, modules, file.name == "__init__.py")
    ]


def imports_in(
    source: str, importer: str, modules: Iterable[str], is_package: bool = False
) -> list[Import]:
    """Returns the imports of one module, those inside functions and `import_module` included."""
    package = importer if is_package else importer.rpartition(".")[0]
    known = set(modules)
    return [
        Import(importer, imported, in_function)
        for node, in_function in _walk(ast.parse(source), False)
        for imported in _imported(node, package, known)
    ]


def violations(imports: Iterable[Import]) -> list[str]:
    """Returns one sentence for each import that breaks a rule of the tables above."""
    return [f"{found}: {why}" for found in imports for why in _broken_rules(found)]


def cycle(edges: Iterable[tuple[str, str]]) -> list[str]:
    """Returns the names along one import cycle, or an empty list."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for importer, imported in edges:
        if importer != imported:
            sorter.add(importer, imported)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def part_of(module: str) -> str:
    """Returns the folder or root module that a dotted name of the product belongs to."""
    return module.split(".")[1] if "." in module else FACE


def is_ours(module: str) -> bool:
    """Returns whether a dotted name is the product's."""
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def third_parties(imports: Iterable[Import]) -> set[str]:
    """Returns the top-level packages that are neither ours nor Python's."""
    tops = {found.imported.split(".")[0] for found in imports}
    return tops - {PACKAGE} - set(sys.stdlib_module_names)


def _broken_rules(found: Import) -> Iterator[str]:
    importer, imported = part_of(found.importer), found.imported.split(".")[0]
    if importer not in ROW_OF:
        yield f"{importer} is in no row of the table"
    elif is_ours(found.imported):
        yield from _broken_row(importer, part_of(found.imported))
    elif importer not in USERS.get(imported, PARTS):
        yield f"{importer} may not use {imported}"
    if imported in LAZY_ONLY and not found.in_function:
        yield f"{imported} is imported inside functions only"


def _broken_row(importer: str, imported: str) -> Iterator[str]:
    if imported not in ROW_OF:
        yield f"{imported} is in no row of the table"
    elif ROW_OF[imported] > ROW_OF[importer]:
        yield f"{imported} stands below {importer}"


def _walk(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(child, in_function or is_function)


def _imported(node: ast.AST, package: str, known: Set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from _imported_from(node, package, known)
    elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
        yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))


def _imported_from(node: ast.ImportFrom, package: str, known: Set[str]) -> Iterator[str]:
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *filter(None, [node.module])])
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        if inner in known:
            yield inner
        elif inner != f"{PACKAGE}.__version__":  # a figure that any part may print
            yield base


def _dotted(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
