"""Where compiled programs are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def keep_compiled_programs() -> None:
    """Turns on JAX's persistent cache, in the user's cache folder unless one is configured.

    Commands call this; the library sets no global flag on import.
    """
    if jax.config.jax_compilation_cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / "apss_jax" / "jax"))
    # The default keeps only what took a second to compile; here every program counts.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
