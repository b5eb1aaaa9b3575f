"""Where compiled programs are kept between runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import jax


@dataclass
class _Kept:
    folder: Path | None = None


_KEPT = _Kept()


def kept_folder() -> Path | None:
    """Returns the folder of traced programs; None in a process that keeps none."""
    return _KEPT.folder


def keep_compiled_programs() -> None:
    """Turns on JAX's persistent cache, in the user's cache folder unless one is configured.

    Commands call this; the library sets no global flag on import.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apss_jax"
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(home / "jax")
    # By default only what took a second to compile is kept; here every program counts.
    wanted = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in wanted.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    _KEPT.folder = home / "traced"
