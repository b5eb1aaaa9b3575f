"""The rules of each framework that plans are exported to."""

from __future__ import annotations

from typing import Final

from apss_jax.legality.framework_rules import (
    ONLY_1F1B,
    FrameworkRule,
    equal_stages,
    full_rounds,
    one_type,
    where,
)
from apss_jax.legality.launch import Launch
from apss_jax.schema.layers import Attention, LinearAttention, StateSpace
from apss_jax.schema.plan import Plan

GEMMA_NORMS: Final = 4  # before and after attention and feed-forward
SCHEDULES: Final = "core/pipeline_parallel/schedules.py"
SHARDED_PIPELINE: Final = where(
    lambda plan: plan.pipeline_parallel > 1 and plan.zero_stage > 1,
    "beside pipeline {plan.pipeline_parallel} it shards the optimizer alone (ZeRO 1)",
)


def _routed_sequence(launch: Launch) -> str | None:
    plan = launch.plan
    if launch.experts is None or plan.tensor_parallel == 1 or plan.sequence_parallel:
        return None
    return f"experts with tensor {plan.tensor_parallel} need sequence parallelism"


def _hybrid_split(launch: Launch) -> str | None:
    recurrent = any(isinstance(each.mixer, StateSpace | LinearAttention) for each in launch.layers)
    uneven = not launch.is_even or launch.plan.virtual_stages > 1
    if recurrent and uneven and launch.plan.pipeline_parallel > 1:
        return (
            "state-space and linear-attention layers need --hybrid-layer-pattern, which excludes "
            "every way to cut a pipeline unevenly or into virtual stages"
        )
    return None


def _encoder(launch: Launch) -> str | None:
    if launch.model is not None and launch.model.encoder_layers:
        return "a pipeline holds decoder layers, and the model has an encoder before them"
    return None


MEGATRON: Final = (
    FrameworkRule("zero", SHARDED_PIPELINE, "Megatron-LM training/arguments.py"),
    FrameworkRule("gpipe", ONLY_1F1B, f"Megatron-LM {SCHEDULES}"),
    FrameworkRule("rounds", full_rounds, f"Megatron-LM {SCHEDULES}"),
    FrameworkRule("routed_sequence", _routed_sequence, "Megatron-LM transformer/moe/moe_layer.py"),
    FrameworkRule("hybrid_split", _hybrid_split, "Megatron-LM training/arguments.py"),
    FrameworkRule("encoder", _encoder, "Megatron-LM transformer/pipeline_parallel_layer_layout.py"),
)


def _in_groups(plan: Plan) -> bool:
    ranks = plan.data_parallel * plan.context_parallel
    return plan.zero_shards is not None and plan.zero_shards < ranks


def _whole_contexts(launch: Launch) -> str | None:
    if launch.plan.data_parallel % launch.replicas:
        return (
            f"states are sharded over all {launch.plan.context_parallel} context ranks, so that "
            f"data {launch.plan.data_parallel} cannot be {launch.replicas} replicas of shards"
        )
    return None


def _mixed_stage(launch: Launch) -> str | None:
    for index, stage in enumerate(launch.plan.stages):
        if stage.device_type and "+" in stage.device_type:
            return f"a mesh has one device type, and stage {index} mixes {stage.device_type}"
    return None


def _hetero_chunks(launch: Launch) -> str | None:
    if len(launch.device_types) > 1 and launch.plan.virtual_stages > 1:
        return "hetero_pipeline_layer_split lists the layers of ranks, not of virtual stages"
    return None


def _empty_stage(launch: Launch) -> str | None:
    if len(launch.device_types) > 1 and 0 in launch.split:
        return f"virtual stage {launch.split.index(0)} has no layer, which it would not build"
    return None


def _hetero_host(launch: Launch) -> str | None:
    if len(launch.device_types) > 1 and not launch.one_agent_per_host:
        return "ranks of one host must follow each other: its meshes are made of whole processes"
    return None


FLAGSCALE: Final = (
    *MEGATRON,
    FrameworkRule("mixed_stage", _mixed_stage, "FlagScale train/hetero/parallel_context.py"),
    FrameworkRule("hetero_chunks", _hetero_chunks, "FlagScale train/arguments.py"),
    FrameworkRule("empty_stage", _empty_stage, "FlagScale train/arguments.py"),
    FrameworkRule("hetero_host", _hetero_host, "FlagScale train/hetero/parallel_context.py"),
)
ONE_CHUNK: Final = where(
    lambda plan: plan.virtual_stages > 1,
    "it runs one chunk on each device, not {plan.virtual_stages}",
)
NO_CONTEXT: Final = where(
    lambda plan: plan.context_parallel > 1,
    "its pipeline has no context ranks, and context is {plan.context_parallel}",
)
NO_EXPERTS: Final = where(
    lambda plan: plan.expert_parallel > 1 and plan.pipeline_parallel > 1,
    "experts cannot be spread beside a pipeline, and expert is {plan.expert_parallel}",
)
WHOLE_LAYERS: Final = where(
    lambda plan: plan.recompute == "selective",
    "activation checkpointing takes whole layers: there is no selective recomputation",
)
WHOLE_ACTIVATIONS: Final = where(
    lambda plan: plan.sequence_parallel,
    "activations between collectives are whole on every tensor rank",
)
TENSOR_SHARDING: Final = where(
    lambda plan: plan.tensor_parallel > 1 and plan.zero_stage == 3,
    "tensor parallel training shards as far as ZeRO 2",
)
PARTITION_GROUPS: Final = where(
    lambda plan: _in_groups(plan) and plan.zero_stage != 3,
    "groups of ranks that shard (mics_shard_size) are for ZeRO 3, and ZeRO is {plan.zero_stage}",
)
DEEPSPEED: Final = (
    # Without the check gradients are reduced twice: deepspeedai/DeepSpeed#823, #568, #1110.
    FrameworkRule("zero", SHARDED_PIPELINE, "DeepSpeed runtime/pipe/engine.py"),
    FrameworkRule("interleaving", ONE_CHUNK, "DeepSpeed runtime/pipe/schedule.py"),
    FrameworkRule("gpipe", ONLY_1F1B, "DeepSpeed runtime/pipe/schedule.py"),
    FrameworkRule("context", NO_CONTEXT, "DeepSpeed runtime/pipe/topology.py"),
    FrameworkRule("experts", NO_EXPERTS, "Megatron-DeepSpeed examples_deepspeed/MoE"),
    FrameworkRule("recompute", WHOLE_LAYERS, "DeepSpeed runtime/pipe/module.py"),
    FrameworkRule("sequence_parallel", WHOLE_ACTIVATIONS, "DeepSpeed module_inject/layers.py"),
    FrameworkRule("tensor_sharding", TENSOR_SHARDING, "DeepSpeed runtime/engine.py"),
    FrameworkRule("zero_shards", PARTITION_GROUPS, "DeepSpeed runtime/engine.py"),
)
OPTIMIZER_ALONE: Final = where(
    lambda plan: plan.zero_stage == 1 and plan.data_parallel * plan.context_parallel > 1,
    "fully_shard keeps parameters, gradients and optimizer sharded (ZeRO 2 or 3), DDP nothing "
    "(ZeRO 0): there is no sharding of the optimizer alone",
)
NO_HALF: Final = where(
    lambda plan: plan.precision == "fp16",
    "mixed_precision_param is bfloat16 or float32, and the plan was made for {plan.precision}",
)
TENSOR_EXPERTS: Final = where(
    lambda plan: plan.expert_parallel > 1 and plan.tensor_parallel > 1,
    "expert ranks are taken from shard x context x tensor, so that experts are not cut by tensor "
    "{plan.tensor_parallel} as in the plan",
)


def _replicated_context(launch: Launch) -> str | None:
    plan = launch.plan
    replicas = plan.zero_stage == 0 and plan.data_parallel > 1
    ranks = plan.context_parallel * plan.tensor_parallel
    if replicas and ranks % plan.expert_parallel:
        return (
            f"experts are spread over shard x context x tensor = {ranks} ranks without data "
            f"sharding, which expert {plan.expert_parallel} does not divide"
        )
    return None


TORCHTITAN: Final = (
    FrameworkRule("zero", OPTIMIZER_ALONE, "torchtitan config/configs.py"),
    FrameworkRule("rounds", full_rounds, "torch distributed/pipelining/schedules.py"),
    FrameworkRule("replicated", _replicated_context, "torchtitan distributed/parallel_dims.py"),
    FrameworkRule("zero_shards", _whole_contexts, "torchtitan distributed/parallel_dims.py"),
    FrameworkRule("experts", TENSOR_EXPERTS, "torchtitan config/configs.py"),
    FrameworkRule("precision", NO_HALF, "torchtitan config/configs.py"),
    FrameworkRule("encoder", _encoder, "torchtitan distributed/pipeline_parallel.py"),
)
PIPELINED_ROUNDS: Final = where(
    lambda plan: plan.pipeline_parallel > 1 and plan.num_micro_batches % plan.pipeline_parallel > 0,
    "num_pipeline_microbatches {plan.num_micro_batches} must be a multiple of "
    "{plan.pipeline_parallel} stages",
)


def _whole_pairs(launch: Launch) -> str | None:
    size = pattern_of(launch)
    held = launch.split[0] if launch.split else 0
    if held % size:
        return f"a decoder layer of it is {size} of the model's, and a stage has {held}"
    return None


def pattern_of(launch: Launch) -> int:
    """Returns how many of the model's layers one decoder layer of MaxText holds.

    Gemma 2 alternates local and global attention, and one layer there is such a pair
    (AI-Hypercomputer/maxtext, configs/models/gemma2-9b.yml: 21 layers for 42).
    """
    layers = launch.model.layer_sequence if launch.model else ()
    local = [isinstance(m := layer.mixer, Attention) and bool(m.window_tokens) for layer in layers]
    paired = all(layer.num_norms == GEMMA_NORMS for layer in layers)
    alternates = local == [index % 2 == 0 for index in range(len(local))]
    return 2 if len(layers) > 1 and paired and alternates else 1


OPTIMIZER_GROUPS: Final = where(
    lambda plan: _in_groups(plan) and plan.zero_stage == 1,
    "shard_optimizer_over_data takes all data ranks, not {plan.zero_shards} of them",
)
ONE_DATA_AXIS: Final = where(
    _in_groups,
    "the module's mesh has one data axis, and states are sharded over {plan.zero_shards} ranks",
)
MAXTEXT: Final = (
    FrameworkRule("equal_stages", equal_stages, "MaxText configs/base.yml"),
    FrameworkRule("one_type", one_type, "one program for all devices"),
    FrameworkRule("rounds", PIPELINED_ROUNDS, "MaxText configs/base.yml"),
    FrameworkRule("pairs", _whole_pairs, "MaxText configs/models/gemma2-9b.yml"),
    FrameworkRule("encoder", _encoder, "MaxText layers/decoders.py"),
    FrameworkRule("zero_shards", OPTIMIZER_GROUPS, "MaxText configs/base.yml"),
    FrameworkRule("whole_contexts", _whole_contexts, "MaxText configs/base.yml"),
)
JAX: Final = (
    FrameworkRule("zero_shards", ONE_DATA_AXIS, "one data axis for all ranks"),
    FrameworkRule("equal_stages", equal_stages, "one program for all devices"),
    FrameworkRule("one_type", one_type, "one program for all devices"),
)
