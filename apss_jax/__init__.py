"""Ranked parallel training plans for a model, a cluster and a global batch.

The functions below are imported when they are first asked for, so that `import apss_jax` costs
nothing: in particular it imports no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apss_jax.exporters.formats import export_plan as export_plan
    from apss_jax.importers.clusters import load_cluster as load_cluster
    from apss_jax.importers.load import load_model as load_model
    from apss_jax.planning.estimate import estimate_plan as estimate_plan
    from apss_jax.planning.search import search_plans as search_plans
    from apss_jax.policy.solve import partition as partition

__version__ = "0.1.0"

# No name here may equal the name of a submodule: importing the submodule would replace it.
_HOME_OF = {
    "export_plan": "apss_jax.exporters.formats",
    "estimate_plan": "apss_jax.planning.estimate",
    "load_cluster": "apss_jax.importers.clusters",
    "load_model": "apss_jax.importers.load",
    "partition": "apss_jax.policy.solve",
    "search_plans": "apss_jax.planning.search",
}


def __getattr__(name: str) -> Any:
    """Returns a public function, importing the module that holds it."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns the public names, those not imported yet included."""
    return sorted({*globals(), *_HOME_OF})
