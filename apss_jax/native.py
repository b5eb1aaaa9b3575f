"""Functions that numba compiles to machine code, kept on disk between processes.

Importing this takes half a second: modules that call such functions import theirs when they need
them.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from numba import njit
from numba.core.errors import NumbaExperimentalFeatureWarning

# Called by compiled code alone: a way in from Python would only take time to compile.
_NO_WRAPPERS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inner = njit(**_NO_WRAPPERS)


def compiled(signature: Any) -> Callable[[Any], Any]:
    """Returns a decorator that compiles for one signature and keeps the result on disk.

    Where neither the package nor the user's cache folder can be written, it compiles in memory.
    """

    def decorate(function: Any) -> Any:
        # numba looks whether the function's own file has changed, and names what it keeps so.
        function.__qualname__ += f"_{_sources_digest()}"
        with catch_warnings():
            # Functions by their address: numba says of each call that the feature is new.
            simplefilter("ignore", NumbaExperimentalFeatureWarning)
            try:
                return njit(signature, cache=True, nogil=True)(function)
            except RuntimeError:
                return njit(signature, nogil=True)(function)

    return decorate


@cache
def _sources_digest() -> str:
    """Returns a digest of all kernels' sources: an entry is made of functions of several files."""
    sources = sorted(Path(__file__).parent.glob("*/*kernels.py"))
    return sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:8]
