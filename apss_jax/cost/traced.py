"""Programs whose traced form is kept between processes, as their compiled form is.

Compiled code is found by the traced program, and tracing is Python's work: reading what was traced
takes a fifth of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any

import jax
from jax import export

from apss_jax.cost.compilation import kept_folder

_DIGEST_BYTES = 32
TRACED = ("", "cost/", "policy/", "partitioning/")  # where all that is traced is written
Shapes = Hashable


class KeptProgram:
    """A jitted function of arrays; where programs are kept, what was traced of it is kept too.

    `tuples` are the named tuples that its arguments and results are made of. It may be called by
    several threads at once.
    """

    def __init__(self, program: Any, options: Mapping[str, Any], tuples: Sequence[type]) -> None:
        self._program = program
        self._options = dict(options)
        self._ready: dict[Shapes, Future[Any]] = {}
        self._used: set[Shapes] = set()
        self._lock = Lock()
        for kind in tuples:
            _make_known(kind)

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function gives."""
        folder = kept_folder()
        if folder is None:
            return self._program(*arguments)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        file = self._file(folder, shapes)
        if shapes not in self._used:
            self._used.add(shapes)
            _touch(file)
        return self._compiled(shapes, lambda: self._traced(file, arguments))(*arguments)

    def load_latest(self, most: int) -> None:
        """Reads the programs that were used last, so that calls find them ready."""
        folder = kept_folder()
        if folder is None:
            return
        for file in _latest(folder, self._prefix)[:most]:
            kept = _read(file)
            if kept is not None:
                self._load(export.deserialize(kept))

    def _load(self, traced: export.Exported) -> None:
        shapes = tuple((shape.shape, shape.dtype) for shape in traced.in_avals)
        self._compiled(shapes, lambda: traced)

    def _compiled(self, shapes: Shapes, trace: Callable[[], export.Exported]) -> Any:
        """Returns the program for some shapes; one thread compiles it, the others wait for it."""
        with self._lock:
            is_first = shapes not in self._ready
            found = self._ready.setdefault(shapes, Future())
        if is_first:
            try:
                traced = trace()
                program = jax.jit(traced.call, compiler_options=self._options)
                arguments, _ = jax.tree.unflatten(traced.in_tree, traced.in_avals)
                found.set_result(program.lower(*arguments).compile())
            except BaseException as error:
                found.set_exception(error)
        return found.result()

    def _traced(self, file: Path, arguments: Any) -> export.Exported:
        kept = _read(file)
        if kept is not None:
            return export.deserialize(kept)
        traced = export.export(self._program)(*arguments)
        _write(file, bytes(traced.serialize()))
        return traced

    def _file(self, folder: Path, shapes: Shapes) -> Path:
        return folder / f"{self._prefix}-{digest_of(shapes)}-traced"

    @cached_property
    def _prefix(self) -> str:
        """Returns the part of a file's name that all programs of today's sources have."""
        widest = jax.dtypes.canonicalize_dtype(float)  # by the flag that doubles precision
        about = (_sources_digest(), jax.__version__, jax.default_backend(), widest)
        return f"{self._program.__name__}-{digest_of(about)}"


def digest_of(about: Hashable) -> str:
    """Returns a name for something that its representation tells from all else."""
    return sha256(repr(about).encode()).hexdigest()[:32]


def _latest(folder: Path, prefix: str) -> list[Path]:
    """Returns the files of a folder that begin so, the one that was used last first."""
    found = []
    for file in folder.glob(f"{prefix}-*-traced"):
        with suppress(OSError):  # another process may have removed it
            found.append((-file.stat().st_mtime, file))
    return [file for _, file in sorted(found)]


def _touch(file: Path) -> None:
    with suppress(OSError):
        os.utime(file)


@cache
def _make_known(kind: type) -> None:
    """Tells JAX, once, how a named tuple is written."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    export.register_namedtuple_serialization(kind, serialized_name=name)


@cache
def _sources_digest() -> str:
    """Returns a digest of all that is traced."""
    package = Path(__file__).parents[1]
    sources = [file for folder in TRACED for file in sorted(package.glob(f"{folder}*.py"))]
    return sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _read(file: Path) -> bytearray | None:
    """Returns what a file holds; None where it is missing or damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return bytearray(payload) if sha256(payload).digest() == digest else None


def _write(file: Path, payload: bytes) -> None:
    """Keeps something where the folder can be written; a reader sees all of it or nothing."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=file.parent, delete=False) as beside:
            beside.write(sha256(payload).digest() + payload)
        os.replace(beside.name, file)
    except OSError:
        return
