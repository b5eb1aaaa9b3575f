"""The rules of each framework that plans are exported to."""

from __future__ import annotations

from typing import Final

from apss_jax.legality.framework_rules import (
    FrameworkRule,
    equal_stages,
    full_rounds,
    has_recurrence,
    no_interleaving,
    one_type,
    only_1f1b,
)
from apss_jax.legality.launch import Launch
from apss_jax.schema.layers import Attention

GEMMA_NORMS: Final = 4  # before and after attention and feed-forward
SCHEDULES: Final = "core/pipeline_parallel/schedules.py"


def _sharded_pipeline(launch: Launch) -> str | None:
    plan = launch.plan
    if plan.pipeline_parallel > 1 and plan.zero_stage > 1:
        return f"beside pipeline {plan.pipeline_parallel} it shards the optimizer alone (ZeRO 1)"
    return None


def _routed_sequence(launch: Launch) -> str | None:
    plan = launch.plan
    if launch.experts is None or plan.tensor_parallel == 1 or plan.sequence_parallel:
        return None
    return f"experts with tensor {plan.tensor_parallel} need sequence parallelism"


def _hybrid_split(launch: Launch) -> str | None:
    uneven = not launch.is_even or launch.plan.virtual_stages > 1
    if has_recurrence(launch) and uneven and launch.plan.pipeline_parallel > 1:
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
    FrameworkRule("zero", _sharded_pipeline, "Megatron-LM training/arguments.py"),
    FrameworkRule("gpipe", only_1f1b, f"Megatron-LM {SCHEDULES}"),
    FrameworkRule("rounds", full_rounds, f"Megatron-LM {SCHEDULES}"),
    FrameworkRule("routed_sequence", _routed_sequence, "Megatron-LM transformer/moe/moe_layer.py"),
    FrameworkRule("hybrid_split", _hybrid_split, "Megatron-LM training/arguments.py"),
    FrameworkRule("encoder", _encoder, "Megatron-LM transformer/pipeline_parallel_layer_layout.py"),
)


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


def _no_context(launch: Launch) -> str | None:
    degree = launch.plan.context_parallel
    return f"its pipeline has no context ranks, and context is {degree}" if degree > 1 else None


def _no_experts(launch: Launch) -> str | None:
    plan = launch.plan
    if plan.expert_parallel > 1 and plan.pipeline_parallel > 1:
        return f"experts cannot be spread beside a pipeline, and expert is {plan.expert_parallel}"
    return None


def _whole_layers(launch: Launch) -> str | None:
    if launch.plan.recompute == "selective":
        return "activation checkpointing takes whole layers: there is no selective recomputation"
    return None


def _no_split_activations(launch: Launch) -> str | None:
    if launch.plan.sequence_parallel:
        return "activations between collectives are whole on every tensor rank"
    return None


def _tensor_sharding(launch: Launch) -> str | None:
    plan = launch.plan
    if plan.tensor_parallel > 1 and plan.zero_stage == 3:
        return "tensor parallel training shards as far as ZeRO 2"
    return None


DEEPSPEED: Final = (
    # Without the check gradients are reduced twice: deepspeedai/DeepSpeed#823, #568, #1110.
    FrameworkRule("zero", _sharded_pipeline, "DeepSpeed runtime/pipe/engine.py"),
    FrameworkRule("interleaving", no_interleaving, "DeepSpeed runtime/pipe/schedule.py"),
    FrameworkRule("gpipe", only_1f1b, "DeepSpeed runtime/pipe/schedule.py"),
    FrameworkRule("context", _no_context, "DeepSpeed runtime/pipe/topology.py"),
    FrameworkRule("experts", _no_experts, "Megatron-DeepSpeed examples_deepspeed/MoE"),
    FrameworkRule("recompute", _whole_layers, "DeepSpeed runtime/pipe/module.py"),
    FrameworkRule("sequence_parallel", _no_split_activations, "DeepSpeed module_inject/layers.py"),
    FrameworkRule("tensor_sharding", _tensor_sharding, "DeepSpeed runtime/engine.py"),
)


def _no_optimizer_sharding(launch: Launch) -> str | None:
    plan = launch.plan
    if plan.zero_stage == 1 and plan.data_parallel * plan.context_parallel > 1:
        return (
            "fully_shard keeps parameters, gradients and optimizer sharded (ZeRO 2 or 3), DDP "
            "nothing (ZeRO 0): there is no sharding of the optimizer alone"
        )
    return None


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


def _experts_in_shards(launch: Launch) -> str | None:
    plan = launch.plan
    if plan.expert_parallel > 1 and plan.tensor_parallel > 1:
        return (
            "expert ranks are taken from shard x context x tensor, so that experts are not cut by "
            f"tensor {plan.tensor_parallel} as in the plan"
        )
    return None


TORCHTITAN: Final = (
    FrameworkRule("zero", _no_optimizer_sharding, "torchtitan config/configs.py"),
    FrameworkRule("rounds", full_rounds, "torch distributed/pipelining/schedules.py"),
    FrameworkRule("replicated", _replicated_context, "torchtitan distributed/parallel_dims.py"),
    FrameworkRule("experts", _experts_in_shards, "torchtitan config/configs.py"),
    FrameworkRule("encoder", _encoder, "torchtitan distributed/pipeline_parallel.py"),
)


def _pipelined_rounds(launch: Launch) -> str | None:
    plan = launch.plan
    if plan.pipeline_parallel > 1 and plan.num_micro_batches % plan.pipeline_parallel:
        return (
            f"num_pipeline_microbatches {plan.num_micro_batches} must be a multiple of "
            f"{plan.pipeline_parallel} stages"
        )
    return None


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


MAXTEXT: Final = (
    FrameworkRule("equal_stages", equal_stages, "MaxText configs/base.yml"),
    FrameworkRule("one_type", one_type, "one program for all devices"),
    FrameworkRule("rounds", _pipelined_rounds, "MaxText configs/base.yml"),
    FrameworkRule("pairs", _whole_pairs, "MaxText configs/models/gemma2-9b.yml"),
    FrameworkRule("encoder", _encoder, "MaxText layers/decoders.py"),
)
JAX: Final = (
    FrameworkRule("equal_stages", equal_stages, "one program for all devices"),
    FrameworkRule("one_type", one_type, "one program for all devices"),
)
