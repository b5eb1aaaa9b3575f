"""What frameworks accept, where they differ: families found by the stack's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Family:
    """The switches of one family of frameworks."""

    max_zero_with_pipeline: int = 1  # highest ZeRO stage beside pipeline parallelism
    interleaving: bool = True  # whether several chunks per device can be scheduled
    fills_pipeline: bool = False  # whether it insists on a micro-batch for every stage
    empty_chunks: bool = False  # whether a chunk may hold nothing
    sequence_parallel: bool = True  # whether a search may propose it
    optimizer_sharding: bool = True  # whether ZeRO 1 exists beside the other stages
    selective_recompute: bool = True  # whether less than a whole layer can be recomputed
    context_parallel: bool = True
    experts_in_pipelines: bool = True  # whether expert parallelism goes with pipeline parallelism
    equal_stages: bool = False  # whether every virtual stage must hold equally many layers
    full_rounds: bool = False  # whether micro-batches must be a multiple of the stages
    prediction: bool = False  # whether it trains layers of multi-token prediction


GENERIC: Final = Family()

FAMILIES: Final[dict[str, Family]] = {
    # An empty stage is legal: the help text of --pipeline-model-parallel-layout shows one.
    # --mtp-num-layers; without a layout string they are on the last stage
    # (core/transformer/multi_token_prediction.py).
    "megatron": Family(empty_chunks=True, prediction=True),
    "nemo": Family(empty_chunks=True, prediction=True),
    # Its pipeline engine refuses ZeRO 2 and 3 (deepspeedai/DeepSpeed#823, #568, #1110), and
    # runtime/pipe/schedule.py has no interleaved schedule.
    # PipelineModule checkpoints whole layers (runtime/pipe/module.py) and its topology has the axes
    # pipe, data and model alone (runtime/pipe/topology.py); experts need --no-pipeline-parallel
    # (Megatron-DeepSpeed, examples_deepspeed/MoE).
    "deepspeed": Family(
        interleaving=False,
        sequence_parallel=False,
        selective_recompute=False,
        context_parallel=False,
        experts_in_pipelines=False,
    ),
    # huggingface/nanotron#419: fewer micro-batches than stages is an assertion; only AFAB and 1F1B.
    "nanotron": Family(interleaving=False, fills_pipeline=True),
    # ParallelismConfig combines data_parallel_shard_degree with pipeline_parallel_degree.
    # fully_shard keeps parameters, gradients and optimizer sharded; DDP keeps all of them whole.
    "torchtitan": Family(max_zero_with_pipeline=3, optimizer_sharding=False),
    "fsdp": Family(max_zero_with_pipeline=3),
    # configs/base.yml: fsdp and pipeline are axes of one mesh; layers = stages x layers per stage x
    # repeats; num_pipeline_microbatches is a multiple of the stages.
    "maxtext": Family(max_zero_with_pipeline=3, equal_stages=True, full_rounds=True),
}


def family_of(stack_name: str) -> Family:
    """Returns the family whose name the stack's name contains, or the most cautious common one."""
    name = stack_name.lower()
    return next((family for key, family in FAMILIES.items() if key in name), GENERIC)
