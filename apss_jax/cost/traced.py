"""Programs whose traced form is kept between processes, as their compiled form is.

Compiled code is found by the traced program, and tracing is Python's work: reading what was traced
takes a fifth of it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import jax
from jax import export

from apss_jax.cost.compilation import kept_folder

_DIGEST_BYTES = 32


class KeptProgram:
    """A jitted function of arrays; where programs are kept, what was traced of it is kept too.

    `tuples` are the named tuples that its arguments and results are made of.
    """

    def __init__(self, program: Any, options: Mapping[str, Any], tuples: Sequence[type]) -> None:
        self._program = program
        self._options = dict(options)
        self._ready: dict[Hashable, Any] = {}
        for kind in tuples:
            name = f"{kind.__module__}.{kind.__qualname__}"
            export.register_namedtuple_serialization(kind, serialized_name=name)

    def __call__(self, *arguments: Any) -> Any:
        """Returns what the function gives."""
        folder = kept_folder()
        if folder is None:
            return self._program(*arguments)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(arguments))
        if shapes not in self._ready:
            traced = self._traced(folder, shapes, arguments)
            self._ready[shapes] = jax.jit(traced.call, compiler_options=self._options)
        return self._ready[shapes](*arguments)

    def _traced(self, folder: Path, shapes: Hashable, arguments: Any) -> export.Exported:
        name = self._program.__name__
        widest = jax.dtypes.canonicalize_dtype(float)  # by the flag that doubles precision
        about = (_sources_digest(), jax.__version__, jax.default_backend(), widest, name, shapes)
        file = folder / f"{name}-{sha256(repr(about).encode()).hexdigest()}-traced"
        kept = _read(file)
        if kept is not None:
            return export.deserialize(kept)
        traced = export.export(self._program)(*arguments)
        _write(file, bytes(traced.serialize()))
        return traced


@cache
def _sources_digest() -> str:
    """Returns a digest of all that is traced."""
    package = Path(__file__).parent.parent
    sources = [*sorted(Path(__file__).parent.glob("*.py")), *package.glob("*.py")]
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
