"""Inputs for one reader that coverage guides.

    pip install atheris
    PYTHONPATH=.:tests:tests/fuzz python tests/fuzz/guided.py hostfile -runs=20000

What counts as a finding is what `fuzzing.py` says; the words after the name are libFuzzer's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["apss_jax", "profiler"]):
    from fuzzing import examples_of, outcome_of, own_folder
    from readers import READERS

    import profiler.imports.formats  # noqa: F401  # readers import it when they run


class FindingError(Exception):
    """A reader did what no input may make it do; libFuzzer keeps the input."""


def main(name: str, words: list[str]) -> None:
    """Runs libFuzzer on a reader, from the inputs that it takes; does not come back."""
    reader = next(reader for reader in READERS if reader.name == name)
    with tempfile.TemporaryDirectory() as corpus, own_folder(reader) as folder:
        for number, example in enumerate(examples_of(reader)):
            (Path(corpus) / str(number)).write_bytes(example)

        def read(data: bytes) -> None:
            outcome = outcome_of(reader, data, folder)
            if outcome.kind not in ("read", "refused"):
                raise FindingError(f"{outcome.kind}: {outcome.text}")

        atheris.Setup([sys.argv[0], *words, corpus], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
