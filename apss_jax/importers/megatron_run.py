"""A launch of Megatron as a question: model, layout, layers of each stage, batch, precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from apss_jax.importers import megatron_arguments as names
from apss_jax.importers.megatron_arguments import MegatronArguments
from apss_jax.importers.megatron_model import model_of_arguments
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Recompute

SHARDING: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
MAX_BATCH: Final = 1_000_000_000  # far above any real one
SELECTIVE: Final = ("--recompute-activations", "--checkpoint-activations")


@dataclass(frozen=True)
class MegatronRun:
    """What a launch says; None where it is silent."""

    arguments: MegatronArguments
    model: Model | None  # None: it does not describe one
    layout: Layout
    split: tuple[int, ...] | None  # layers of each virtual stage, in model order
    global_batch: int
    seq_len: int | None
    precision: str
    notes: tuple[str, ...]  # what was assumed, or not read


def run_of_arguments(given: MegatronArguments, num_devices: int) -> MegatronRun:
    """Returns the run on so many devices, over which the data degree is what remains."""
    notes: list[str] = []
    tensor, context = given.degree(names.TENSOR), given.degree(names.CONTEXT)
    pipeline, virtual = given.pipeline_parallel, given.virtual_stages
    data = max(num_devices // (tensor * pipeline * context), 1)
    stage = _zero_stage(given)
    micro_batch = given.size("--micro-batch-size", 1, most=MAX_BATCH)
    layout = Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        context_parallel=context,
        expert_parallel=given.degree(names.EXPERT),
        virtual_stages=virtual,
        micro_batch=micro_batch,
        zero_stage=stage,
        zero_shards=_zero_shards(given, stage, data * context, notes),
        recompute=_recompute(given, notes),
        sequence_parallel=_sequence_parallel(given, tensor, notes),
        schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
    )
    if any("m" in stage for stage in (given.layout_stages or ())[:-1]):
        notes.append(f"{names.LAYOUT}: every m is counted on the last stage, with L")
    described = given.has(names.LAYERS) and given.has("--hidden-size")
    return MegatronRun(
        arguments=given,
        model=model_of_arguments(given) if described else None,
        layout=layout,
        split=split_of_arguments(given),
        global_batch=given.size("--global-batch-size", micro_batch * data, most=MAX_BATCH),
        seq_len=given.maybe_size("--seq-length", "--encoder-seq-length", most=MAX_BATCH),
        precision=_precision(given),
        notes=tuple(notes),
    )


def nodes_of_arguments(given: MegatronArguments) -> tuple[int, int] | None:
    """Returns nodes and processes of each, from the launcher's flags; None where they lack."""
    per_node = given.maybe_size("--nproc-per-node", "--num-gpus")
    nodes = given.maybe_size("--nnodes", "--num-nodes")
    return None if per_node is None else (nodes or 1, per_node)


def _zero_stage(given: MegatronArguments) -> int:
    if given.has("--use-megatron-fsdp", "--use-torch-fsdp2"):
        named = given.text("--data-parallel-sharding-strategy") or "no_shard"
        if named not in SHARDING:
            rule = f"must be one of {', '.join(SHARDING)}"
            raise given.wrong("--data-parallel-sharding-strategy", rule)
        return SHARDING[named]
    return int(given.has("--use-distributed-optimizer"))


def _zero_shards(given: MegatronArguments, stage: int, ranks: int, notes: list[str]) -> int | None:
    """Returns over how many ranks one instance of the distributed optimizer is spread."""
    instances = given.degree(names.INSTANCES)
    if instances == 1:
        return None
    if stage == 0 or ranks % instances:
        notes.append(
            f"{names.INSTANCES} {instances}: not read, for it does not shard {ranks} ranks"
        )
        return None
    return ranks // instances


def _recompute(given: MegatronArguments, notes: list[str]) -> Recompute:
    named = given.text("--recompute-granularity")
    if named is None:
        return "selective" if given.has(*SELECTIVE) else "none"
    if named not in ("full", "selective"):
        raise given.wrong("--recompute-granularity", "must be full or selective")
    if given.has("--recompute-modules"):
        notes.append("--recompute-modules: single modules are taken as selective recomputation")
    if given.text("--recompute-method") == "block":
        notes.append("--recompute-method block: every layer is taken as recomputed")
    return cast(Recompute, named)


def _sequence_parallel(given: MegatronArguments, tensor: int, notes: list[str]) -> bool:
    asked = given.has("--sequence-parallel")
    if asked and tensor == 1:
        notes.append("--sequence-parallel: Megatron switches it off with one tensor rank")
    return asked and tensor > 1


def _precision(given: MegatronArguments) -> str:
    if given.has("--fp8-format", "--fp8"):
        return "fp8"
    return "bf16" if given.has("--bf16") else "fp16" if given.has("--fp16") else "fp32"


def split_of_arguments(given: MegatronArguments) -> tuple[int, ...] | None:
    """Returns the layers of each virtual stage in model order; None where they do not add up.

    Counts on the first and the last stage leave the middle to divide evenly; embedding and loss
    can count as a layer each (Megatron-LM, core/transformer/transformer_block.py,
    `get_num_layers_to_build`).
    """
    stages = given.layout_stages
    if stages is not None:
        return tuple(stage.count("t") for stage in stages)
    if not given.has(names.LAYERS):
        return None
    per_rank = _per_rank(given)
    virtual = given.virtual_stages
    if per_rank is None or any(count % virtual for count in per_rank):
        return None
    split = [count // virtual for _ in range(virtual) for count in per_rank]
    # With several chunks the embedding's place is in the first of them, the loss's in the last.
    split[0] -= int(given.has(names.WITH_EMBEDDING))
    split[-1] -= int(given.has(names.WITH_LOSS))
    return tuple(split) if min(split) >= 0 else None


def _per_rank(given: MegatronArguments) -> list[int] | None:
    """Returns the layers of each rank, embedding and loss included where they count as one."""
    stages = given.pipeline_parallel
    first, last = given.maybe_size(*names.FIRST), given.maybe_size(*names.LAST)
    if stages == 1:
        return [given.counted_layers] if first is None and last is None else None
    middle = given.counted_layers - (first or 0) - (last or 0)
    ranks = stages - (first is not None) - (last is not None)
    if middle < 0 or (middle % ranks if ranks else middle):
        return None
    each = middle // ranks if ranks else 0
    head = [] if first is None else [first]
    return head + [each] * ranks + ([] if last is None else [last])
