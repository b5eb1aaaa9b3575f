"""Rules that come from the cluster: how many devices, where groups fit, which precision."""

from __future__ import annotations

import numpy as np

from apss_jax.legality.facts import Facts
from apss_jax.legality.rule import Mask, Numbers, Rule, nowhere
from apss_jax.schema.layout import Layout, Layouts

DEGREES = (
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "context_parallel",
    "expert_parallel",
    "virtual_stages",
    "micro_batch",
)


def _degrees_broken(layouts: Layouts, facts: Facts) -> Mask:
    found = (layouts.zero_stage < 0) | (layouts.zero_stage > 3) | (layouts.zero_shards < 0)
    for name in DEGREES:
        found |= getattr(layouts, name) < 1
    return found


def _degrees_reason(layout: Layout, facts: Facts) -> str:
    wrong = [f"{name} is {getattr(layout, name)}" for name in DEGREES if getattr(layout, name) < 1]
    if wrong:
        return f"{' and '.join(wrong)}, but every degree is at least 1"
    if (layout.zero_shards or 0) < 0:
        return f"zero_shards is {layout.zero_shards}, but at least one rank holds a share"
    return f"zero_stage is {layout.zero_stage}, but there are only 0, 1, 2 and 3"


def _groups(layouts: Layouts) -> Numbers:
    """Returns how many tensor groups each layout needs; floats, so that no product overflows."""
    pipelines = layouts.context_parallel * layouts.data_parallel.astype(np.float64)
    return pipelines * layouts.pipeline_parallel


def _devices_broken(layouts: Layouts, facts: Facts) -> Mask:
    return layouts.tensor_parallel * _groups(layouts) > facts.num_devices


def _devices_reason(layout: Layout, facts: Facts) -> str:
    product = (
        f"tensor {layout.tensor_parallel} x context {layout.context_parallel} x pipeline "
        f"{layout.pipeline_parallel} x data {layout.data_parallel} = {layout.num_devices}"
    )
    return f"{product} devices are needed, and the cluster has {facts.num_devices}"


def _placement_broken(layouts: Layouts, facts: Facts) -> Mask:
    too_many = _groups(layouts) > facts.groups_of(layouts.tensor_parallel)
    return too_many & ~_devices_broken(layouts, facts)


def _placement_reason(layout: Layout, facts: Facts) -> str:
    needed = layout.num_devices // layout.tensor_parallel
    fitting = int(facts.groups_by_degree[layout.tensor_parallel])
    sizes = " and ".join(map(str, sorted(set(facts.domains))))
    return (
        f"{needed} tensor groups of {layout.tensor_parallel} devices are needed, and {fitting} fit "
        f"into nodes (or scale-up domains) of {sizes} without crossing a border; a group may span "
        "whole nodes of one size"
    )


def _precision_broken(layouts: Layouts, facts: Facts) -> Mask:
    return nowhere(layouts) | bool(facts.types_without_precision)


def _precision_reason(layout: Layout, facts: Facts) -> str:
    lacking = " and ".join(facts.types_without_precision)
    return (
        f"{lacking} cannot compute in {facts.precision}; choose a precision that all devices have"
    )


DEGREE_RULE = Rule("degrees", _degrees_broken, _degrees_reason)
CLUSTER_RULES = (
    Rule("devices", _devices_broken, _devices_reason, "data_parallel"),
    Rule("placement", _placement_broken, _placement_reason, "tensor_parallel"),
    Rule("precision", _precision_broken, _precision_reason),
)
