"""The tools whose profiles can be read, by the name that a person gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import mistake
from profiler.imports.aceso import read_aceso
from profiler.imports.amp import read_amp
from profiler.imports.attach import attached
from profiler.imports.galvatron import read_galvatron
from profiler.imports.imported import ReadFn, Wanted
from profiler.imports.metis import read_metis
from profiler.imports.nccl_tests import read_nccl_tests
from profiler.imports.piper import read_piper
from profiler.imports.sailor import read_sailor

FORMATS: Final[dict[str, ReadFn]] = {
    "nccl-tests": read_nccl_tests,
    "metis": read_metis,
    "galvatron": read_galvatron,
    "sailor": read_sailor,
    "aceso": read_aceso,
    "piper": read_piper,
    "amp": read_amp,
}


def import_profile(tool: str, files: Sequence[Path], wanted: Wanted) -> ClusterProfile:
    """Returns the wanted cluster with what a tool measured in it; raises `InputError`."""
    if tool not in FORMATS:
        raise mistake("FORMAT", tool, "is not known", f"Choose from {', '.join(FORMATS)}")
    imported = FORMATS[tool](files, wanted)
    return attached(imported, wanted, f"{tool}: {', '.join(path.name for path in files)}")
