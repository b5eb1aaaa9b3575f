"""torchtitan: a Python recipe with the modules of each stage, and the launch line.

Target: torchtitan 0.3.0 (config/configs.py, config/manager.py). Releases before February 2026 read
TOML instead of a recipe.
"""

from __future__ import annotations

from typing import Any, Final

from apss_jax.exporters.export import Export, Exporter, commented, header
from apss_jax.exporters.hosts import hostfile, hostfile_notes, torchrun
from apss_jax.legality.framework_limits import TORCHTITAN
from apss_jax.legality.launch import Launch
from apss_jax.schema.cluster import FULL

VERSION: Final = "0.3.0"
MODULE: Final = "planned/config_registry.py"
# Recipes that the release has, by the library's name of the model.
RECIPES: Final = {
    "llama-3-8b": ("llama3", "llama3_8b"),
    "llama-3.1-8b": ("llama3", "llama3_8b"),
    "llama-3-70b": ("llama3", "llama3_70b"),
    "llama-3.1-70b": ("llama3", "llama3_70b"),
    "llama-3.3-70b": ("llama3", "llama3_70b"),
    "llama-3.1-405b": ("llama3", "llama3_405b"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b"),
    "gpt-oss-20b": ("gpt_oss", "gpt_oss_20b"),
    "gpt-oss-120b": ("gpt_oss", "gpt_oss_120b"),
    "qwen3-0.6b": ("qwen3", "qwen3_0_6b"),
    "qwen3-1.7b": ("qwen3", "qwen3_1_7b"),
    "qwen3-14b": ("qwen3", "qwen3_14b"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b"),
    "qwen3-32b": ("qwen3", "qwen3_32b"),
}
RECOMPUTE: Final = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
FP8: Final = "The plan's products are in FP8: add the release's Float8 converter to the recipe."
SCHEDULES: Final = {"1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "gpipe": "GPipe"}


def parts(launch: Launch) -> list[list[str]] | None:
    """Returns the modules of every virtual stage, None without a pipeline."""
    if launch.plan.pipeline_parallel == 1:
        return None
    return [
        [
            *(["tok_embeddings"] if chunk.embedding else []),
            *(f"layers.{chunk.first_layer + i}" for i in range(chunk.num_layers)),
            *(["norm", "lm_head"] if chunk.head else []),
        ]
        for chunk in launch.chunks
    ]


def parallelism(launch: Launch) -> dict[str, Any]:
    """Returns the fields of ParallelismConfig."""
    plan = launch.plan
    sharded = plan.zero_stage > 0 or plan.data_parallel == 1
    replicas = launch.replicas if sharded else plan.data_parallel
    fields: dict[str, Any] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": plan.data_parallel // replicas,
        "fsdp_reshard_after_forward": "always" if plan.zero_stage == 3 else "never",
        "tensor_parallel_degree": plan.tensor_parallel,
        "enable_sequence_parallel": plan.sequence_parallel,
        "context_parallel_degree": plan.context_parallel,
        "expert_parallel_degree": plan.expert_parallel,
        "pipeline_parallel_degree": plan.pipeline_parallel,
    }
    if plan.pipeline_parallel > 1:
        fields["pipeline_parallel_schedule"] = SCHEDULES[plan.schedule]
        fields["pipeline_parallel_microbatch_size"] = plan.micro_batch
        fields["module_fqns_per_model_part"] = parts(launch)
    return fields


def training(launch: Launch) -> dict[str, Any]:
    """Returns the fields of TrainingConfig that the plan decides.

    A pipeline splits the local batch into its micro-batches; without one it is accumulated.
    """
    plan = launch.plan
    rounds = plan.num_micro_batches if plan.pipeline_parallel > 1 else 1
    return {
        "local_batch_size": plan.micro_batch * rounds,
        "global_batch_size": plan.global_batch,
        "seq_len": plan.seq_len,
        "mixed_precision_param": "float32" if plan.precision in FULL else "bfloat16",
    }


def _recipe(launch: Launch) -> tuple[list[str], str, list[str]]:
    """Returns import lines, the expression of the base recipe, and notes."""
    known = RECIPES.get(launch.library_name or "")
    if known is not None:
        line = f"from torchtitan.models.{known[0]}.config_registry import {known[1]}"
        return [line], f"{known[1]}()", []
    note = "The release has no recipe of this model: put yours in place of base_recipe."
    return ["from my_recipes import base_recipe"], "base_recipe()", [note]


def write_torchtitan(launch: Launch) -> Export:
    """Returns the recipe as a package, and the launch script."""
    imports, base, notes = _recipe(launch)
    lines = [f"    config.training.{key} = {value!r}" for key, value in training(launch).items()]
    wide = [f"        {key}={value!r}," for key, value in parallelism(launch).items()]
    said = [*hostfile_notes(launch), *notes, *([FP8] if launch.plan.precision == "fp8" else [])]
    above = commented(header("torchtitan", VERSION, launch, [*said, _TENSORS]))
    module = "\n".join(
        [
            above,
            '"""The plan as a torchtitan recipe."""',
            "",
            "from torchtitan.config import ParallelismConfig",
            "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
            *imports,
            "",
            "",
            "def planned():",
            '    """Returns the Trainer.Config of the plan."""',
            f"    config = {base}",
            *lines,
            "    config.parallelism = ParallelismConfig(",
            *wide,
            "    )",
            f"    config.activation_checkpoint = {RECOMPUTE[launch.plan.recompute]}",
            "    return config",
            "",
        ]
    )
    words = ["-m", "torchtitan.train", "--module", "planned", "--config", "planned", '"$@"']
    here = ['cd "$(dirname "$0")"', 'export PYTHONPATH="$PWD:${PYTHONPATH:-}"']
    start = "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", *here, torchrun(launch, words)])
    files = {MODULE: module, "planned/__init__.py": "", "launch.sh": start}
    if launch.agents:
        files["hostfile"] = hostfile(launch)
    return Export(files, MODULE)


_TENSORS: Final = "Releases before February 2026 read TOML: [parallelism] has the same names there."
EXPORTER: Final = Exporter(
    "torchtitan",
    "torchtitan",
    VERSION,
    "torchtitan",
    TORCHTITAN,
    write_torchtitan,
    (MODULE, "planned/__init__.py", "launch.sh", "hostfile"),
)
