"""Rules of a whole plan: its layout, and which layers and devices its stages hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from apss_jax.legality.check import violations
from apss_jax.legality.domains import first_straddling
from apss_jax.legality.facts import Facts
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Chunk, Plan, Violation


def layout_of(plan: Plan) -> Layout:
    """Returns the degrees and switches of a plan."""
    return Layout(
        tensor_parallel=plan.tensor_parallel,
        pipeline_parallel=plan.pipeline_parallel,
        data_parallel=plan.data_parallel,
        context_parallel=plan.context_parallel,
        expert_parallel=plan.expert_parallel,
        virtual_stages=plan.virtual_stages,
        micro_batch=plan.micro_batch,
        zero_stage=plan.zero_stage,
        zero_shards=plan.zero_shards,
        recompute=plan.recompute,
        sequence_parallel=plan.sequence_parallel,
        schedule=plan.schedule,
    )


def plan_violations(plan: Plan, facts: Facts) -> tuple[Violation, ...]:
    """Returns every rule that a plan breaks; a plan without stages is judged by its degrees."""
    found = list(violations(layout_of(plan), facts))
    found += _named("micro_batches", _micro_batches(plan, facts))
    if plan.stages:
        shape = _named("stages", _shape(plan))
        # Chunks can be put in order only where every stage has as many as the layout says.
        found += shape or _named("layers", _layers(plan, facts))
        found += _named("stage_devices", _devices(plan, facts))
    return tuple(found)


def _named(rule: str, messages: Iterator[str]) -> list[Violation]:
    return [Violation(rule=rule, message=message) for message in messages]


def _micro_batches(plan: Plan, facts: Facts) -> Iterator[str]:
    samples = plan.data_parallel * plan.micro_batch * plan.num_micro_batches
    if samples != facts.global_batch:
        yield (
            f"data parallel {plan.data_parallel} x micro-batch {plan.micro_batch} x "
            f"{plan.num_micro_batches} micro-batches = {samples} sequences, but the global batch "
            f"is {facts.global_batch}"
        )


def _shape(plan: Plan) -> Iterator[str]:
    if len(plan.stages) != plan.pipeline_parallel:
        yield (
            f"the plan lists {len(plan.stages)} stages, but pipeline parallel is "
            f"{plan.pipeline_parallel}"
        )
    for index, stage in enumerate(plan.stages):
        if len(stage.chunks) != plan.virtual_stages:
            yield (
                f"stage {index} has {len(stage.chunks)} chunks, but virtual stages is "
                f"{plan.virtual_stages}"
            )


def _in_order(plan: Plan) -> list[tuple[str, Chunk]]:
    """Returns chunks in the order in which a micro-batch passes them, with a name for messages."""
    return [
        (f"stage {s}, chunk {c}" if plan.virtual_stages > 1 else f"stage {s}", stage.chunks[c])
        for c in range(plan.virtual_stages)
        for s, stage in enumerate(plan.stages)
    ]


def _layers(plan: Plan, facts: Facts) -> Iterator[str]:
    chunks = _in_order(plan)
    yield from _coverage(chunks, facts)
    yield from _ends(chunks, facts)
    if not facts.family.empty_chunks:
        for name, chunk in chunks:
            if not (chunk.num_layers or chunk.embedding or chunk.head):
                yield f"{name} holds nothing, which {facts.stack} does not accept"


def _coverage(chunks: list[tuple[str, Chunk]], facts: Facts) -> Iterator[str]:
    expected = 0
    for name, chunk in chunks:
        if chunk.num_layers and chunk.first_layer != expected:
            what = "leaves out" if chunk.first_layer > expected else "repeats"
            yield (
                f"{name} starts at layer {chunk.first_layer} and {what} layers: after the chunk "
                f"before it, layer {expected} comes next"
            )
        if chunk.num_layers:
            expected = chunk.first_layer + chunk.num_layers
    held = sum(chunk.num_layers for _, chunk in chunks)
    if held != facts.num_layers or expected != facts.num_layers:
        yield (
            f"the stages hold {held} layers and end before layer {expected}, but the model has "
            f"{facts.num_layers}"
        )


def _ends(chunks: list[tuple[str, Chunk]], facts: Facts) -> Iterator[str]:
    last = len(chunks) - 1
    for key, place in (("embedding", 0), ("head", last)):
        holders = [i for i, (_, chunk) in enumerate(chunks) if getattr(chunk, key)]
        due = [place] if facts.has_ends else []
        if holders != due:
            where = ", ".join(chunks[i][0] for i in holders) or "nowhere"
            want = chunks[place][0] if due else "nowhere: the table's rows are all there is"
            yield f"the {key} is held {where}, and belongs {want}"


def _devices(plan: Plan, facts: Facts) -> Iterator[str]:
    per_stage = plan.tensor_parallel * plan.context_parallel * plan.data_parallel
    uses = Counter(device for stage in plan.stages for device in stage.devices)
    unknown = sorted(device for device in uses if device >= facts.num_devices)
    if unknown:
        yield f"devices {_some(unknown)} do not exist: the cluster has 0 to {facts.num_devices - 1}"
    twice = sorted(device for device, count in uses.items() if count > 1)
    if twice:
        yield f"devices {_some(twice)} are used more than once"
    for index, stage in enumerate(plan.stages):
        if stage.devices and len(stage.devices) != per_stage:
            yield (
                f"stage {index} lists {len(stage.devices)} devices, but tensor x context x data = "
                f"{per_stage}"
            )
        elif stage.devices and not unknown:
            yield from _borders(index, stage.devices, plan.tensor_parallel, facts)


def _borders(index: int, devices: tuple[int, ...], degree: int, facts: Facts) -> Iterator[str]:
    group = first_straddling(facts.domains, devices, degree)
    if group is not None:
        members = devices[group * degree : (group + 1) * degree]
        yield (
            f"tensor group {_some(list(members))} of stage {index} crosses a node's border without "
            "being made of whole nodes of one size"
        )


def _some(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8} more" if len(numbers) > 8 else shown
