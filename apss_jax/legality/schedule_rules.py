"""Rules of batch, pipeline schedule and sharding."""

from __future__ import annotations

from apss_jax.legality.facts import Facts
from apss_jax.legality.rule import Mask, Numbers, Rule, at_least_one
from apss_jax.schema.layout import SCHEDULES, Layout, Layouts

INTERLEAVED = SCHEDULES.index("interleaved_1f1b")


def _samples(layouts: Layouts) -> Numbers:
    return at_least_one(layouts.data_parallel * layouts.micro_batch)


def _batch_broken(layouts: Layouts, facts: Facts) -> Mask:
    return facts.global_batch % _samples(layouts) != 0


def _batch_reason(layout: Layout, facts: Facts) -> str:
    return (
        f"a global batch of {facts.global_batch} cannot be divided by data parallel "
        f"{layout.data_parallel} x micro-batch {layout.micro_batch} = "
        f"{layout.data_parallel * layout.micro_batch}"
    )


def _depth_broken(layouts: Layouts, facts: Facts) -> Mask:
    return layouts.pipeline_parallel * layouts.virtual_stages > facts.num_units


def _depth_reason(layout: Layout, facts: Facts) -> str:
    stages = layout.pipeline_parallel * layout.virtual_stages
    ends = ", the embedding and the head" if facts.has_ends else ""
    return (
        f"pipeline {layout.pipeline_parallel} x virtual stages {layout.virtual_stages} = {stages} "
        f"pieces, but the {facts.num_layers} layers{ends} can be cut into {facts.num_units} at most"
    )


def _schedule_broken(layouts: Layouts, facts: Facts) -> Mask:
    interleaved = layouts.schedule == INTERLEAVED
    return interleaved != (layouts.virtual_stages > 1)


def _schedule_reason(layout: Layout, facts: Facts) -> str:
    if layout.virtual_stages > 1:
        return (
            f"schedule {layout.schedule} runs one chunk per device; {layout.virtual_stages} "
            "virtual stages need interleaved_1f1b"
        )
    return "schedule interleaved_1f1b needs at least 2 virtual stages; use 1f1b with 1"


def _interleaving_broken(layouts: Layouts, facts: Facts) -> Mask:
    refused = (layouts.pipeline_parallel < 2) | (not facts.family.interleaving)
    return (layouts.virtual_stages > 1) & refused


def _interleaving_reason(layout: Layout, facts: Facts) -> str:
    if not facts.family.interleaving:
        return (
            f"{facts.stack} has no interleaved schedule: virtual stages {layout.virtual_stages} "
            "must be 1"
        )
    return (
        f"virtual stages {layout.virtual_stages} need pipeline parallel of at least 2, not "
        f"{layout.pipeline_parallel}"
    )


def _rounds_broken(layouts: Layouts, facts: Facts) -> Mask:
    counts = facts.global_batch // _samples(layouts)
    uneven = counts % at_least_one(layouts.pipeline_parallel) != 0
    return uneven & (layouts.virtual_stages > 1) & ~_batch_broken(layouts, facts)


def _rounds_reason(layout: Layout, facts: Facts) -> str:
    count = layout.num_micro_batches(facts.global_batch)
    return (
        f"interleaving needs the {count} micro-batches to be a multiple of pipeline parallel "
        f"{layout.pipeline_parallel}"
    )


def _filled_broken(layouts: Layouts, facts: Facts) -> Mask:
    counts = facts.global_batch // _samples(layouts)
    return (counts < layouts.pipeline_parallel) & facts.family.fills_pipeline


def _filled_reason(layout: Layout, facts: Facts) -> str:
    count = layout.num_micro_batches(facts.global_batch)
    return (
        f"{facts.stack} needs at least one micro-batch for every stage: {count} for pipeline "
        f"parallel {layout.pipeline_parallel}"
    )


def _zero_broken(layouts: Layouts, facts: Facts) -> Mask:
    too_far = layouts.zero_stage > facts.family.max_zero_with_pipeline
    return (layouts.pipeline_parallel > 1) & too_far


def _zero_reason(layout: Layout, facts: Facts) -> str:
    return (
        f"{facts.stack} does not shard as far as ZeRO {layout.zero_stage} beside pipeline parallel "
        f"{layout.pipeline_parallel}"
    )


def _shards_broken(layouts: Layouts, facts: Facts) -> Mask:
    ranks = layouts.data_parallel * layouts.context_parallel
    shards = at_least_one(layouts.zero_shards)
    uneven = (ranks % shards != 0) | (shards % at_least_one(layouts.expert_parallel) != 0)
    return (layouts.zero_shards > 0) & (uneven | (layouts.zero_stage == 0))


def _shards_reason(layout: Layout, facts: Facts) -> str:
    if layout.zero_stage == 0:
        return f"ZeRO 0 shards nothing, and zero_shards is {layout.zero_shards}: leave it out"
    return (
        f"ZeRO shards must divide the data x context ranks, {layout.data_parallel} x "
        f"{layout.context_parallel}, and be a multiple of expert parallel "
        f"{layout.expert_parallel}; {layout.zero_shards} is not"
    )


def _sequence_parallel_broken(layouts: Layouts, facts: Facts) -> Mask:
    return (layouts.sequence_parallel > 0) & ((layouts.tensor_parallel < 2) | facts.is_table)


def _sequence_parallel_reason(layout: Layout, facts: Facts) -> str:
    if facts.is_table:
        return "a table of layers has no costs for sequence parallelism: switch it off"
    return (
        "sequence parallelism divides the sequence over the tensor ranks and needs tensor parallel "
        f"of at least 2, not {layout.tensor_parallel}: switch it off"
    )


SCHEDULE_RULES = (
    Rule("batch", _batch_broken, _batch_reason, "data_parallel"),
    Rule("depth", _depth_broken, _depth_reason, "pipeline_parallel"),
    Rule("schedule", _schedule_broken, _schedule_reason),
    # Megatron-LM training/arguments.py: pipeline > 1 (with overlapped transfers, its default).
    Rule("interleaving", _interleaving_broken, _interleaving_reason),
    # Megatron-LM core/pipeline_parallel/schedules.py: the last group of micro-batches must be full.
    Rule("rounds", _rounds_broken, _rounds_reason, "micro_batch"),
    Rule("filled", _filled_broken, _filled_reason, "micro_batch"),
    Rule("zero", _zero_broken, _zero_reason, "zero_stage"),
    Rule("zero_shards", _shards_broken, _shards_reason, "zero_shards"),
    # Megatron-LM core/model_parallel_config.py.
    Rule("sequence_parallel", _sequence_parallel_broken, _sequence_parallel_reason),
)
