"""What Megatron refuses of its own arguments, and what it would silently get wrong.

Each rule names its source; a layer count that does not come out is an error whatever a release
makes of it, because old ones build a smaller model without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from apss_jax.importers import megatron_arguments as names
from apss_jax.importers.megatron_arguments import MegatronArguments
from apss_jax.importers.pipeline_layout import layout_problems
from apss_jax.schema.plan import Violation

ENDS: Final = (names.WITH_EMBEDDING, names.WITH_LOSS)
COUNTS: Final = (*names.FIRST, *names.LAST)
CHUNKS: Final = (names.PER_VIRTUAL, names.VIRTUAL)
NO_OVERLAP: Final = "--no-overlap-p2p-communication"
OFFLOAD: Final = "--cpu-offloading"

ReasonsFn = Callable[[MegatronArguments], Iterator[str]]
"""Yields what is wrong with some arguments, in words with their numbers."""


@dataclass(frozen=True)
class ArgumentRule:
    """A named rule about Megatron's arguments."""

    name: str
    reasons: ReasonsFn
    source: str


def argument_violations(
    given: MegatronArguments, num_devices: int | None = None
) -> tuple[Violation, ...]:
    """Returns every rule that the arguments break, on so many devices; all of them at once."""
    found = [
        Violation(rule=rule.name, message=f"{reason} ({rule.source})")
        for rule in ARGUMENT_RULES
        for reason in rule.reasons(given)
    ]
    return tuple([*found, *_world(given, num_devices)])


def _world(given: MegatronArguments, num_devices: int | None) -> Iterator[Violation]:
    """Yields the rule that degrees divide the world, from which the data degree follows."""
    degrees = [given.size(flag, 1) for flag in (names.TENSOR, names.PIPELINE, names.CONTEXT)]
    if num_devices is not None and num_devices % math.prod(degrees):
        shown = " x ".join(map(str, degrees))
        reason = f"{num_devices} devices cannot be divided by tensor x pipeline x context = {shown}"
        yield Violation(rule="world", message=f"{reason} ({ARGUMENTS})")


def _uneven(given: MegatronArguments) -> bool:
    return given.has(names.LAYOUT, *COUNTS)


def _even_layers(given: MegatronArguments) -> Iterator[str]:
    layers, stages = given.maybe_size(names.LAYERS), given.pipeline_parallel
    if layers is None or _uneven(given):
        return
    counted = layers + sum(given.has(flag) for flag in ENDS)
    what = f"{layers} layers" if counted == layers else f"{layers} layers and the ends, {counted},"
    if counted % stages:
        yield (
            f"{what} cannot be divided by pipeline {stages}; older releases build "
            f"{counted // stages * stages} layers without a message. Give {names.LAYOUT}, or "
            f"{names.FIRST[0]} and {names.LAST[0]}"
        )
    else:
        yield from _even_chunks(given, counted // stages)


def _even_chunks(given: MegatronArguments, per_rank: int) -> Iterator[str]:
    per_chunk, chunks = given.maybe_size(names.PER_VIRTUAL), given.maybe_size(names.VIRTUAL)
    each = per_chunk or (per_rank // chunks if chunks else per_rank)
    if (each and per_rank % each) or (chunks and per_rank % chunks):
        built = per_rank // each * each if per_chunk else each * (chunks or 1)
        pieces = f"chunks of {per_chunk}" if per_chunk else f"{chunks} virtual stages"
        yield (
            f"{per_rank} layers of each stage cannot be divided into {pieces}: older releases "
            f"build {built} of them without a message. {_legal_chunks(per_rank)}"
        )


def _legal_chunks(per_rank: int) -> str:
    legal = [n for n in range(1, per_rank + 1) if per_rank % n == 0]
    return f"Legal virtual stages: {', '.join(map(str, legal[:12]))}"


def _counts_without_pipeline(given: MegatronArguments) -> Iterator[str]:
    asked = [flag for flag in COUNTS if given.has(flag)]
    if asked and given.pipeline_parallel == 1:
        yield (
            f"{' and '.join(asked)} mean nothing with one pipeline stage: the model would have so "
            "many layers and no more"
        )


def _middle(given: MegatronArguments) -> Iterator[str]:
    layers, stages = given.maybe_size(names.LAYERS), given.pipeline_parallel
    counts = [given.maybe_size(*flags) for flags in (names.FIRST, names.LAST)]
    ends = [count for count in counts if count is not None]
    if layers is None or not ends or stages == 1:
        return
    rest, ranks = layers - sum(ends), stages - len(ends)
    if rest < 0 or (rest % ranks if ranks else rest):
        yield (
            f"{layers} layers less {' and '.join(map(str, ends))} leave {rest} for {ranks} stages "
            "in the middle, which must divide them evenly"
        )


def _exclusive(given: MegatronArguments) -> Iterator[str]:
    for flag, others in (
        (names.LAYOUT, (*CHUNKS, *COUNTS, *ENDS)),
        (names.FIRST[0], ENDS),
        (names.LAST[0], ENDS),
        (names.PER_VIRTUAL, (names.VIRTUAL,)),
        ("--hybrid-layer-pattern", (names.LAYOUT, *CHUNKS, *COUNTS, *ENDS)),
    ):
        beside = [other for other in others if given.has(other)]
        if given.has(flag) and beside:
            yield f"{flag} excludes {' and '.join(beside)}"


def _layout(given: MegatronArguments) -> Iterator[str]:
    stages = given.layout_stages
    if stages is not None:
        found = layout_problems(
            stages,
            num_layers=given.needed(names.LAYERS),
            pipeline_parallel=given.pipeline_parallel,
            num_mtp=given.maybe_size(names.PREDICTION, least=0) or 0,
        )
        yield from (f"the layout {given.text(names.LAYOUT)!r} is refused: {each}" for each in found)


def _interleaving(given: MegatronArguments) -> Iterator[str]:
    stages = given.pipeline_parallel
    chunks = given.virtual_stages if given.has(names.LAYOUT) else int(given.has(*CHUNKS)) + 1
    least = 3 if given.has(NO_OVERLAP) else 2
    if chunks > 1 and stages < least:
        beside = f" with {NO_OVERLAP}" if least == 3 else ""
        yield f"virtual stages need pipeline of at least {least}{beside}, not {stages}"


def _offloading(given: MegatronArguments) -> Iterator[str]:
    if not given.has(OFFLOAD, "--cpu-offloading-num-layers"):
        return
    if given.pipeline_parallel > 1:
        yield f"activations are not offloaded beside pipeline {given.pipeline_parallel}"
    if given.has("--recompute-granularity", "--recompute-activations"):
        yield "offloading of activations excludes recomputation"


def _overlap(given: MegatronArguments) -> Iterator[str]:
    modules = given.flags.get("--recompute-modules", ())
    if "moe" in modules and given.has("--overlap-moe-expert-parallel-comm"):
        yield "recomputing whole expert layers excludes --overlap-moe-expert-parallel-comm"
    if "shared_experts" in modules and given.has("--moe-shared-expert-overlap"):
        yield "recomputing shared_experts excludes --moe-shared-expert-overlap"


def _ramp_up(given: MegatronArguments) -> Iterator[str]:
    sizes = given.flags.get("--rampup-batch-size", ())[:2]
    micro_batch = given.size("--micro-batch-size", 1)
    for size in sizes:
        if re.fullmatch(r"\d{1,10}", size) and int(size) % micro_batch:
            yield f"a ramp-up step of {size} is no multiple of micro-batch {micro_batch}"


def _routed_sequence(given: MegatronArguments) -> Iterator[str]:
    tensor = given.size(names.TENSOR, 1)
    if given.has("--num-experts") and tensor > 1 and not given.has("--sequence-parallel"):
        yield f"experts with tensor {tensor} need --sequence-parallel"


CONFIG: Final = "Megatron-LM core/transformer/transformer_config.py"
ARGUMENTS: Final = "Megatron-LM training/arguments.py"
ARGUMENT_RULES: Final = (
    ArgumentRule("even_layers", _even_layers, "NVIDIA/Megatron-LM#1304, #468"),
    ArgumentRule("counts_need_pipeline", _counts_without_pipeline, "NVIDIA/Megatron-LM#1778"),
    ArgumentRule("middle_layers", _middle, CONFIG),
    ArgumentRule("exclusive_splits", _exclusive, f"{ARGUMENTS} and {CONFIG}"),
    ArgumentRule("layout", _layout, "core/transformer/pipeline_parallel_layer_layout.py"),
    ArgumentRule("interleaving", _interleaving, ARGUMENTS),
    ArgumentRule("cpu_offloading", _offloading, CONFIG),
    ArgumentRule("recompute_overlap", _overlap, CONFIG),
    ArgumentRule("ramp_up", _ramp_up, "core/num_microbatches_calculator.py"),
    ArgumentRule("routed_sequence", _routed_sequence, "core/transformer/moe/moe_layer.py"),
)
