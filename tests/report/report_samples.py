"""Results that a report draws: tiny searches with all detail, and one without a plan."""

from functools import cache

from builders import ideal_device, tiny_cluster, tiny_model, tiny_stack

from apss_jax.planning.detail import with_detail
from apss_jax.planning.search import search_plans
from apss_jax.schema.cluster import ClusterProfile, NodeGroup
from apss_jax.schema.plan import SearchResult
from apss_jax.units import TFLOP

PINNED = {"pipeline_parallel": [4]}
SLOW = ideal_device(peak_flops_per_s={"bf16": 40 * TFLOP})
NODES = tuple(
    NodeGroup(devices=2, device_type=kind, intra_link="inside", network="between")
    for kind in ("ideal", "slow <i>")
)
TYPES = {"ideal": ideal_device(), "slow <i>": SLOW}
LINKS = tiny_cluster().links
MIXED = ClusterProfile(name="mixed", device_types=TYPES, links=LINKS, nodes=NODES)
STACK = tiny_stack(step_s=1e-5)


@cache
def mixed_result() -> SearchResult:
    """Returns pipelines of twelve tiny layers over two types of devices."""
    asked = {
        "global_batch": 32,
        "seq_len": 64,
        "stack": STACK,
        "pins": PINNED,
        "top": 3,
        "solver": "uniform",
    }
    result = search_plans(tiny_model(12), MIXED, **asked)
    return with_detail(tiny_model(12), MIXED, result, STACK)


@cache
def long_result() -> SearchResult:
    """Returns a pipeline of 32 stages and more ops than are listed."""
    cluster = tiny_cluster(8, nodes=4)
    pins = {"pipeline_parallel": [32]}
    asked = {
        "global_batch": 96,
        "seq_len": 64,
        "stack": STACK,
        "pins": pins,
        "top": 1,
        "solver": "uniform",
    }
    result = search_plans(tiny_model(40), cluster, **asked)
    return with_detail(tiny_model(40), cluster, result, STACK)


@cache
def empty_result() -> SearchResult:
    """Returns the answer where no plan fits."""
    small = tiny_cluster(1, device_types={"ideal": ideal_device(memory_bytes=10_000)})
    return search_plans(tiny_model(), small, global_batch=4, seq_len=64, stack=STACK)
