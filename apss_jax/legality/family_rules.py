"""Rules that come from the framework alone; `frameworks` says which has which limit, and where."""

from __future__ import annotations

from typing import Final

from apss_jax.legality.facts import Facts
from apss_jax.legality.rule import Mask, Rule, at_least_one, nowhere
from apss_jax.schema.layout import RECOMPUTE, Layout, Layouts

SELECTIVE: Final = RECOMPUTE.index("selective")


def _sharding_broken(layouts: Layouts, facts: Facts) -> Mask:
    shared = layouts.data_parallel * layouts.context_parallel > 1
    return (layouts.zero_stage == 1) & shared & (not facts.family.optimizer_sharding)


def _sharding_reason(layout: Layout, facts: Facts) -> str:
    return (
        f"{facts.stack} shards parameters, gradients and optimizer together or nothing: it has no "
        "ZeRO 1"
    )


def _recompute_broken(layouts: Layouts, facts: Facts) -> Mask:
    return (layouts.recompute == SELECTIVE) & (not facts.family.selective_recompute)


def _recompute_reason(layout: Layout, facts: Facts) -> str:
    return f"{facts.stack} recomputes whole layers: use none or full"


def _context_broken(layouts: Layouts, facts: Facts) -> Mask:
    return (layouts.context_parallel > 1) & (not facts.family.context_parallel)


def _context_reason(layout: Layout, facts: Facts) -> str:
    return f"{facts.stack} has no context ranks: context {layout.context_parallel} must be 1"


def _experts_broken(layouts: Layouts, facts: Facts) -> Mask:
    both = (layouts.expert_parallel > 1) & (layouts.pipeline_parallel > 1)
    return both & (not facts.family.experts_in_pipelines)


def _experts_reason(layout: Layout, facts: Facts) -> str:
    return (
        f"{facts.stack} does not spread experts over ranks beside a pipeline: expert "
        f"{layout.expert_parallel} with pipeline {layout.pipeline_parallel}"
    )


def _equal_broken(layouts: Layouts, facts: Facts) -> Mask:
    if not facts.family.equal_stages:
        return nowhere(layouts)
    pieces = at_least_one(layouts.pipeline_parallel * layouts.virtual_stages)
    return facts.num_layers % pieces != 0


def _equal_reason(layout: Layout, facts: Facts) -> str:
    pieces = layout.pipeline_parallel * layout.virtual_stages
    return (
        f"{facts.stack} gives every stage equally many layers, and {facts.num_layers} layers "
        f"cannot be divided by {pieces}"
    )


def _rounds_broken(layouts: Layouts, facts: Facts) -> Mask:
    if not facts.family.full_rounds:
        return nowhere(layouts)
    samples = at_least_one(layouts.data_parallel * layouts.micro_batch)
    counts = facts.global_batch // samples
    return counts % at_least_one(layouts.pipeline_parallel) != 0


def _rounds_reason(layout: Layout, facts: Facts) -> str:
    count = layout.num_micro_batches(facts.global_batch)
    return (
        f"{facts.stack} needs the {count} micro-batches to be a multiple of pipeline parallel "
        f"{layout.pipeline_parallel}"
    )


FAMILY_RULES: Final = (
    Rule("optimizer_sharding", _sharding_broken, _sharding_reason, "zero_stage"),
    Rule("selective_recompute", _recompute_broken, _recompute_reason),
    Rule("no_context", _context_broken, _context_reason, "context_parallel"),
    Rule("experts_in_pipeline", _experts_broken, _experts_reason, "expert_parallel"),
    Rule("equal_stages", _equal_broken, _equal_reason, "pipeline_parallel"),
    Rule("full_rounds", _rounds_broken, _rounds_reason, "micro_batch"),
)
