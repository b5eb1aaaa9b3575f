"""Megatron-Bridge (NeMo): a Python module that changes a recipe's configuration to the plan.

Target: Megatron-Bridge 0.5 (fields of ConfigContainer as in its guide from Megatron-LM).
"""

from __future__ import annotations

from typing import Any, Final

from apss_jax.exporters.export import Export, Exporter, commented, header
from apss_jax.exporters.hosts import connections, hostfile, hostfile_notes, torchrun
from apss_jax.exporters.megatron import SHARDING, stage_symbols
from apss_jax.importers.pipeline_layout import layout_text
from apss_jax.legality.framework_limits import MEGATRON
from apss_jax.legality.launch import Launch

VERSION: Final = "0.5"
MODULE: Final = "plan_overrides.py"
PRECISION: Final = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_hybrid"}
USE: Final = (
    "Use it between recipe and training: `config = recipe(); apply_plan(config); pretrain(config, "
    "forward_step)`."
)


def overrides(launch: Launch) -> dict[str, Any]:
    """Returns the fields of the configuration by dotted name."""
    plan = launch.plan
    fields: dict[str, Any] = {
        "model.tensor_model_parallel_size": plan.tensor_parallel,
        "model.pipeline_model_parallel_size": plan.pipeline_parallel,
        "model.virtual_pipeline_model_parallel_size": _virtual(launch),
        "model.context_parallel_size": plan.context_parallel,
        "model.expert_model_parallel_size": plan.expert_parallel,
        "model.expert_tensor_parallel_size": plan.tensor_parallel if launch.experts else None,
        "model.sequence_parallel": plan.sequence_parallel,
        "model.pipeline_model_parallel_layout": _layout(launch),
        "model.num_layers_in_first_pipeline_stage": None,
        "model.num_layers_in_last_pipeline_stage": None,
        "model.account_for_embedding_in_pipeline_split": False,
        "model.account_for_loss_in_pipeline_split": False,
        "model.recompute_granularity": None if plan.recompute == "none" else plan.recompute,
        "model.recompute_method": "uniform" if plan.recompute == "full" else None,
        "model.recompute_num_layers": 1 if plan.recompute == "full" else None,
        "model.mtp_num_layers": launch.num_predictions or None,
        "model.seq_length": plan.seq_len,
        "dataset.sequence_length": plan.seq_len,
        "train.micro_batch_size": plan.micro_batch,
        "train.global_batch_size": plan.global_batch,
        "ddp.overlap_grad_reduce": True,
        **_sharding(plan.zero_stage),
        "ddp.num_distributed_optimizer_instances": launch.replicas,
    }
    if plan.precision in PRECISION:
        fields["mixed_precision"] = PRECISION[plan.precision]
    return fields


def _virtual(launch: Launch) -> int | None:
    chunks = launch.plan.virtual_stages
    return chunks if chunks > 1 else None


def _layout(launch: Launch) -> str | None:
    return None if launch.is_even else layout_text(stage_symbols(launch))


def _sharding(zero_stage: int) -> dict[str, Any]:
    fsdp = zero_stage in SHARDING
    strategy = SHARDING.get(zero_stage, "optim" if zero_stage else "no_shard")
    return {
        "ddp.use_distributed_optimizer": zero_stage > 0,
        "ddp.overlap_param_gather": zero_stage > 0,
        "ddp.use_megatron_fsdp": fsdp,
        "ddp.data_parallel_sharding_strategy": strategy,
    }


def write_bridge(launch: Launch) -> Export:
    """Returns the module, and the launch line with a hostfile."""
    lines = [f"    config.{name} = {value!r}" for name, value in overrides(launch).items()]
    top = commented(
        header(
            "Megatron-Bridge",
            VERSION,
            launch,
            [*hostfile_notes(launch), USE],
            trains_prediction=True,
        )
    )
    body = "\n".join(lines)
    module = (
        f'{top}\n"""The plan as changes to a Megatron-Bridge configuration."""\n\n\n'
        f'def apply_plan(config):\n    """Changes a ConfigContainer to the plan."""\n{body}\n'
    )
    words = ['"${1:?give the training script that calls apply_plan}"', '"${@:2}"']
    start = torchrun(launch, words, connections(launch))
    files = {MODULE: module, "launch.sh": f"#!/usr/bin/env bash\nset -euo pipefail\n{start}"}
    if launch.agents:
        files["hostfile"] = hostfile(launch)
    return Export(files, MODULE)


EXPORTER: Final = Exporter(
    "bridge",
    "Megatron-Bridge",
    VERSION,
    "nemo",
    MEGATRON,
    write_bridge,
    (MODULE, "launch.sh", "hostfile"),
)
