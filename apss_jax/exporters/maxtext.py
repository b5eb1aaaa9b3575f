"""MaxText: one YAML file over its base configuration, and the launch line.

Target: MaxText of August 2026 (src/maxtext/configs/base.yml). Layers are stages x layers per stage
x repeats there, so that only even plans can be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from apss_jax.exporters.export import Export, Exporter, commented, header, vocab_rows, yaml_text
from apss_jax.legality.framework_limits import MAXTEXT, pattern_of
from apss_jax.legality.launch import Launch
from apss_jax.schema.layers import Attention, DenseMlp, LatentAttention
from apss_jax.schema.model import Model

VERSION: Final = "of August 2026"
CONFIG: Final = "plan.yml"
VOCAB_MULTIPLE: Final = 128  # of Gemma's padded table in its model files
# Model files of the release, by the library's name.
MODELS: Final = {
    "llama-2-7b": "llama2-7b", "llama-2-13b": "llama2-13b", "llama-2-70b": "llama2-70b",
    "llama-3-8b": "llama3-8b", "llama-3-70b": "llama3-70b", "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b", "llama-3.1-405b": "llama3.1-405b",
    "llama-3.3-70b": "llama3.3-70b", "mistral-7b-v0.1": "mistral-7b",
    "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b", "gemma-2b": "gemma-2b",
    "gemma-7b": "gemma-7b", "gemma-2-2b": "gemma2-2b", "gemma-2-9b": "gemma2-9b",
    "gemma-2-27b": "gemma2-27b", "gemma3-4b": "gemma3-4b", "gemma3-12b": "gemma3-12b",
    "gemma3-27b": "gemma3-27b", "deepseek-v3": "deepseek3-671b", "qwen3-0.6b": "qwen3-0.6b",
    "qwen3-4b": "qwen3-4b", "qwen3-8b": "qwen3-8b", "qwen3-14b": "qwen3-14b",
    "qwen3-32b": "qwen3-32b", "gpt-oss-20b": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b",
}  # fmt: skip
RECOMPUTE: Final = {"none": "minimal", "selective": "minimal_with_context", "full": "full"}
GPIPE: Final = (
    "All forward passes of a pipeline come before the backward ones here: its memory grows with "
    "the micro-batches, and the plan's was counted for 1F1B."
)
LEFT: Final = "Add run_name, base_output_directory and the dataset's own settings."


def axes(launch: Launch) -> dict[str, int]:
    """Returns the degree of every mesh axis that the plan uses, inside hosts and across them.

    Axes are filled with the devices of a host from the fastest on: tensor, context, then data, of
    which replicas of what is sharded come last.
    """
    plan = launch.plan
    fully = plan.zero_stage > 1
    replicas = launch.replicas if fully else 1
    experts = plan.expert_parallel
    data, context = plan.data_parallel, plan.context_parallel
    inside = launch_host_size(launch)
    found: dict[str, int] = {}
    # Expert ranks are data ranks of the dense layers: they leave the data axis for their own.
    spread = min(experts, data)
    for axis, degree in (
        ("tensor", plan.tensor_parallel),
        ("context", context),
        ("expert", spread),
        ("fsdp" if fully else "data", data // spread // replicas),
        *((("data", replicas),) if replicas > 1 else ()),
        ("pipeline", plan.pipeline_parallel),
    ):
        within = _largest_divisor(degree, inside)
        inside //= within
        found[f"ici_{axis}_parallelism"] = within
        found[f"dcn_{axis}_parallelism"] = degree // within
    return found


def launch_host_size(launch: Launch) -> int:
    """Returns the ranks of a host; all of them where the cluster is not known."""
    return min((len(agent.gpus) for agent in launch.agents), default=launch.world)


def _largest_divisor(degree: int, most: int) -> int:
    return next(
        n for n in range(min(degree, max(most, 1)), 0, -1) if not degree % n and not most % n
    )


def batch(launch: Launch) -> dict[str, Any]:
    """Returns batch sizes: per device, and how often a device accumulates or pipelines it."""
    plan = launch.plan
    pipelined = plan.pipeline_parallel > 1
    steps = 1 if pipelined else plan.num_micro_batches
    each = Fraction(plan.global_batch or 0, launch.world * steps)
    fields: dict[str, Any] = {
        "per_device_batch_size": each.numerator if each.denominator == 1 else float(each),
        "gradient_accumulation_steps": steps,
        "max_target_length": plan.seq_len,
    }
    if pipelined:
        fields["num_pipeline_microbatches"] = plan.num_micro_batches
        fields["num_layers_per_pipeline_stage"] = launch.split[0] // pattern_of(launch)
        fields["num_pipeline_repeats"] = plan.virtual_stages
    return fields


def architecture(launch: Launch) -> tuple[dict[str, Any], list[str]]:
    """Returns the model's fields: its own file by name where the release has one, else sizes."""
    model = launch.model
    known = MODELS.get(launch.library_name or "")
    notes = []
    if pattern_of(launch) > 1:
        notes.append(
            f"{launch.num_layers} layers are {launch.num_layers // pattern_of(launch)} here: one "
            "holds a local and a global layer, and the vocabulary is padded."
        )
    if known is not None:
        return {"model_name": known, **_padded(launch)}, notes
    if model is None:
        return {}, ["The model is not at hand: set model_name or its sizes."]
    return dict(_sizes(model, launch)), notes


def _padded(launch: Launch) -> dict[str, Any]:
    """Returns a vocabulary that the tensor ranks divide, where the model's own is none."""
    rows = vocab_rows(launch)
    own = launch.model.embedding.vocab_size if launch.model and launch.model.embedding else rows
    return {} if rows == own else {"override_model_config": True, "vocab_size": rows}


def _sizes(model: Model, launch: Launch) -> Iterator[tuple[str, Any]]:
    layer = model.layers[-1].layer
    yield "base_emb_dim", model.hidden_size
    yield "base_num_decoder_layers", model.num_layers // pattern_of(launch)
    if isinstance(layer.mixer, Attention):
        yield "base_num_query_heads", layer.mixer.num_heads
        yield "base_num_kv_heads", layer.mixer.num_kv_heads
        yield "head_dim", layer.mixer.head_dim
    elif isinstance(layer.mixer, LatentAttention):
        yield "attention_type", "mla"
        yield "base_num_query_heads", layer.mixer.num_heads
        yield "q_lora_rank", layer.mixer.query_rank or 0
        yield "kv_lora_rank", layer.mixer.kv_rank
        yield "qk_nope_head_dim", layer.mixer.nope_head_dim
        yield "qk_rope_head_dim", layer.mixer.rope_head_dim
        yield "v_head_dim", layer.mixer.value_head_dim
    dense = [r.layer.feed_forward for r in model.layers]
    widths = [part.intermediate_size for part in dense if isinstance(part, DenseMlp)]
    if widths:
        yield "base_mlp_dim", widths[0]
    if launch.experts is not None:
        yield "num_experts", launch.experts.num_experts
        yield "num_experts_per_tok", launch.experts.experts_per_token
        yield "base_moe_mlp_dim", launch.experts.expert_intermediate_size
    yield "vocab_size", vocab_rows(launch)
    yield "logits_via_embedding", model.head.tied


def write_maxtext(launch: Launch) -> Export:
    """Returns the YAML file and how to start it."""
    plan = launch.plan
    fields, notes = architecture(launch)
    config = {
        "base_config": "base.yml",
        "hardware": "gpu",
        **fields,
        **axes(launch),
        **batch(launch),
        "shard_optimizer_over_data": plan.zero_stage == 1 and plan.data_parallel > 1,
        "remat_policy": RECOMPUTE[plan.recompute],
        "dtype": {"fp16": "float16", "fp32": "float32"}.get(plan.precision or "", "bfloat16"),
        "scan_layers": plan.pipeline_parallel == 1,
    }
    if plan.precision == "fp8":
        config["quantization"] = "fp8"
    said = [*notes, LEFT, *([GPIPE] if plan.pipeline_parallel > 1 else [])]
    top = commented(header("MaxText", VERSION, launch, said))
    run = f'python3 -m maxtext.trainers.pre_train.train "$(dirname "$0")/{CONFIG}" "$@"'
    start = f"#!/usr/bin/env bash\nset -euo pipefail\n{run}\n"
    return Export({CONFIG: f"{top}\n{yaml_text(config)}", "launch.sh": start}, CONFIG)


EXPORTER: Final = Exporter(
    "maxtext", "MaxText", VERSION, "maxtext", MAXTEXT, write_maxtext, (CONFIG, "launch.sh")
)
