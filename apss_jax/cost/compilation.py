"""Where compiled programs are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_compiled_programs() -> None:
    """Turns on JAX's persistent cache, in the user's cache folder unless one is configured.

    Commands call this; the library sets no global flag on import.
    """
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(Path(home) / "apss_jax" / "jax")
    # By default only what took a second to compile is kept; here every program counts.
    wanted = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in wanted.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
