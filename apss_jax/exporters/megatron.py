"""Megatron-LM: a launch script, the arguments as lines, and a hostfile in rank order.

Target: Megatron-LM with core 0.16 (names in megatron/training/arguments.py and
megatron/core/transformer/transformer_config.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from apss_jax.exporters.export import Export, Exporter, commented, header
from apss_jax.exporters.hosts import connections, hostfile, hostfile_notes, torchrun
from apss_jax.exporters.megatron_model import Flag, model_flags
from apss_jax.importers import megatron_arguments as names
from apss_jax.importers.pipeline_layout import layout_text
from apss_jax.legality.framework_limits import MEGATRON
from apss_jax.legality.launch import Launch

VERSION: Final = "core 0.16"
SCRIPT: Final = "launch.sh"
LEFT: Final = (
    "Add what the plan does not decide: --data-path, --tokenizer-type and its files, --lr, "
    "--train-iters, --save. They may stand after this script's name."
)
SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}
PRECISION_FLAGS: Final[dict[str, tuple[Flag, ...]]] = {
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid")),
}


def stage_symbols(launch: Launch) -> list[str]:
    """Returns every virtual stage in the symbols of a layout: E, t for each layer, m, L."""
    end = "m" * launch.num_predictions + "L"
    return [
        ("E" if chunk.embedding else "") + "t" * chunk.num_layers + (end if chunk.head else "")
        for chunk in launch.chunks
    ]


def parallel_flags(launch: Launch) -> list[Flag]:
    """Returns the flags of degrees, stages, sharding and recomputation."""
    plan = launch.plan
    flags: list[Flag] = [
        (names.TENSOR, str(plan.tensor_parallel)),
        (names.PIPELINE, str(plan.pipeline_parallel)),
        (names.CONTEXT, str(plan.context_parallel)),
    ]
    if launch.experts is not None or plan.expert_parallel > 1:
        flags.append((names.EXPERT, str(plan.expert_parallel)))
        flags.append(("--expert-tensor-parallel-size", str(plan.tensor_parallel)))
    if plan.sequence_parallel:
        flags.append(("--sequence-parallel",))
    return [*flags, *_split_flags(launch), *_sharding_flags(launch), *_recompute_flags(launch)]


def _split_flags(launch: Launch) -> Iterator[Flag]:
    if not launch.is_even:
        yield names.LAYOUT, layout_text(stage_symbols(launch))
    elif launch.plan.virtual_stages > 1:
        yield names.VIRTUAL, str(launch.plan.virtual_stages)


def _sharding_flags(launch: Launch) -> Iterator[Flag]:
    stage = launch.plan.zero_stage
    if stage > 0:
        yield ("--use-distributed-optimizer",)
        yield ("--overlap-param-gather",)
    if launch.replicas > 1:
        yield names.INSTANCES, str(launch.replicas)
    if stage in SHARDING:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", SHARDING[stage]
        yield ("--no-gradient-accumulation-fusion",)
        yield "--ckpt-format", "fsdp_dtensor"
    yield ("--overlap-grad-reduce",)


def _recompute_flags(launch: Launch) -> Iterator[Flag]:
    named = launch.plan.recompute
    if named != "none":
        yield "--recompute-granularity", named
    if named == "full":
        yield "--recompute-method", "uniform"
        yield "--recompute-num-layers", "1"


def shape_flags(launch: Launch) -> list[Flag]:
    """Returns the flags of the model that the plan knows whatever else is known of it."""
    flags: list[Flag] = [(names.LAYERS, str(launch.num_layers))]
    if launch.num_predictions:
        flags.append((names.PREDICTION, str(launch.num_predictions)))
    return [*flags, ("--seq-length", str(launch.plan.seq_len))]


def batch_flags(launch: Launch) -> list[Flag]:
    """Returns the flags of batch and number format."""
    plan = launch.plan
    return [
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(plan.global_batch)),
        *PRECISION_FLAGS.get(plan.precision or "", ()),
    ]


def older_versions(launch: Launch) -> list[str]:
    """Returns what releases without the layout string can make of the plan."""
    if launch.is_even:
        return []
    said = f"{names.LAYOUT} needs a release of mid-2025 or later."
    split = launch.split
    middle = set(split[1:-1])
    plain = launch.plan.virtual_stages == 1 and len(middle) <= 1 and 0 not in split
    if not plain:
        return [f"{said} Older ones cannot express this plan."]
    ends = f"{names.FIRST[0]} {split[0]} {names.LAST[0]} {split[-1]}"
    return [f"{said} In its place older ones take {ends}."]


def flag_lines(flags: Sequence[Flag]) -> str:
    """Returns one line for each flag, quoted where a shell would read more into it."""
    return "".join(f"{' '.join(shlex.quote(word) for word in flag)}\n" for flag in flags)


def _array(name: str, flags: Sequence[Flag]) -> str:
    lines = "".join(f"  {line}\n" for line in flag_lines(flags).splitlines())
    return f"{name}=(\n{lines})\n"


def write_megatron(launch: Launch) -> Export:
    """Returns the launch script, the arguments as lines, and the hostfile."""
    described, notes = model_flags(launch.model, launch.plan)
    parts = {
        "MODEL_ARGS": [*shape_flags(launch), *described],
        "PARALLEL_ARGS": parallel_flags(launch),
        "BATCH_ARGS": batch_flags(launch),
    }
    said = [*hostfile_notes(launch), *older_versions(launch), *notes, LEFT]
    if launch.plan.precision in ("fp32", "tf32"):
        said.append(f"Precision {launch.plan.precision} is Megatron's without a flag.")
    top = commented(header("Megatron-LM", VERSION, launch, said, trains_prediction=True))
    arrays = "\n".join(_array(name, flags) for name, flags in parts.items())
    words = ['"${MEGATRON:-.}/pretrain_gpt.py"', *(f'"${{{name}[@]}}"' for name in parts), '"$@"']
    start = torchrun(launch, words, connections(launch))
    script = f"#!/usr/bin/env bash\n{top}\nset -euo pipefail\n\n{arrays}\n{start}"
    files = {SCRIPT: script, "arguments.txt": flag_lines([f for p in parts.values() for f in p])}
    if launch.agents:
        files["hostfile"] = hostfile(launch)
    return Export(files, SCRIPT)


EXPORTER: Final = Exporter(
    "megatron",
    "Megatron-LM",
    VERSION,
    "megatron",
    MEGATRON,
    write_megatron,
    (SCRIPT, "arguments.txt", "hostfile"),
)
