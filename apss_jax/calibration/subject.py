"""What a line of a runs table means: everything that a prediction of that run needs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

from apss_jax.calibration.cluster_of_run import cluster_of_run
from apss_jax.calibration.gaps import Gaps, UnusableRunError
from apss_jax.calibration.layout_of_run import batch_of_run, degrees_of_run, layout_of_run
from apss_jax.calibration.model_of_run import model_of_run
from apss_jax.calibration.splits import (
    Offsets,
    offsets_by_cost,
    offsets_by_module,
    offsets_of_boundaries,
)
from apss_jax.importers.clusters import load_stack
from apss_jax.importers.frameworks import framework_named
from apss_jax.schema.cluster import ClusterProfile, Precision
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import Model
from apss_jax.schema.references import Framework
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Stack
from apss_jax.schema.workload import Workload

DEFAULT_SEQ_LEN: Final = 4096
MAX_TABLE_OPS: Final = 1_000_000  # of a schedule that cannot be folded
# Tried in order on the precision's text. Formats of fewer than 8 bits are costed as FP8.
PRECISIONS: Final[tuple[tuple[str, Precision], ...]] = (
    ("fp8|float8|fp4|float4", "fp8"),
    ("bf16|bfloat16", "bf16"),
    ("fp16|float16|half", "fp16"),
    ("tf32", "tf32"),
    ("fp32|float32|single", "fp32"),
)
NARROW: Final = "fp4|float4"


@dataclass(frozen=True, eq=False)
class Subject:
    """A run in the planner's terms; equal models, clusters and stacks are one object."""

    run: Run
    model: Model
    cluster: ClusterProfile
    seq_len: int
    precision: Precision
    stack: Stack
    layout: Layout
    global_batch: int
    num_micro_batches: int
    offsets: Offsets | None  # first unit of each virtual stage, and the end; None: even layers
    framework: Framework
    assumed: tuple[str, ...]

    @property
    def workload(self) -> Workload:
        """Returns what one step trains on."""
        return Workload(
            global_batch=self.global_batch, seq_len=self.seq_len, precision=self.precision
        )


@dataclass(frozen=True)
class SkippedRun:
    """A run that cannot be predicted, and why."""

    run: Run
    reason: str


def subject_of(run: Run, stack: Stack | None = None) -> Subject | SkippedRun:
    """Returns what a run means, or why it cannot be used.

    `stack` replaces the one that the framework's name tells.
    """
    try:
        return _subject(run, stack)
    except UnusableRunError as error:
        return SkippedRun(run, str(error))


def _subject(run: Run, stack: Stack | None) -> Subject:
    gaps = Gaps()
    cluster = cluster_of_run(run, gaps)
    model = model_of_run(run, gaps)
    framework = framework_named(run.framework)
    experts = any(isinstance(entry.layer.feed_forward, MoeMlp) for entry in model.layers)
    degrees = degrees_of_run(run, cluster.num_devices, gaps)
    layout = layout_of_run(run, degrees, framework, gaps, has_experts=experts)
    batch, count = batch_of_run(run, layout, gaps, accumulates=framework.accumulates)
    _refuse_uncostable(model, layout, count)
    if run.framework is None:
        gaps.assume("framework")
    longest = min(model.max_seq_len or DEFAULT_SEQ_LEN, DEFAULT_SEQ_LEN)
    return Subject(
        run=run,
        model=model,
        cluster=cluster,
        seq_len=gaps.fill("seq_len", run.seq_len, longest),
        precision=_precision(run, cluster, gaps),
        stack=_stack(run, framework, stack, gaps),
        layout=layout,
        global_batch=batch,
        num_micro_batches=count,
        offsets=_offsets(run, model, layout, framework),
        framework=framework,
        assumed=gaps.assumed,
    )


def _refuse_uncostable(model: Model, layout: Layout, num_micro_batches: int) -> None:
    pieces = layout.pipeline_parallel * layout.virtual_stages
    if pieces > model.num_layers + 2:
        raise UnusableRunError("more stages than layers")
    if layout.virtual_stages > 1 and num_micro_batches % layout.pipeline_parallel:
        raise UnusableRunError("interleaving with micro-batches that do not fill the last round")
    if layout.schedule == "gpipe" and num_micro_batches * pieces > MAX_TABLE_OPS:
        raise UnusableRunError("too many micro-batches to simulate")


def _precision(run: Run, cluster: ClusterProfile, gaps: Gaps) -> Precision:
    text = (run.precision or "").lower()
    named = next((name for pattern, name in PRECISIONS if re.search(pattern, text)), None)
    if named is None or re.search(NARROW, text):
        gaps.assume("precision")
    kinds = [cluster.device_types[name] for name in cluster.used_types]
    if named is None:
        has_bf16 = all("bf16" in kind.peak_flops_per_s for kind in kinds)
        named = "bf16" if has_bf16 else "fp16"
    if named == "fp32" and all("tf32" in kind.peak_flops_per_s for kind in kinds):
        # NVIDIA's PyTorch images multiply FP32 values as TF32 (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE),
        # and published runs "in FP32" exceed the plain rate.
        gaps.assume("precision")
        named = "tf32"
    if not all(named in kind.peak_flops_per_s for kind in kinds):
        raise UnusableRunError(f"no {named} rate known for the GPU")
    return named


def _stack(run: Run, framework: Framework, given: Stack | None, gaps: Gaps) -> Stack:
    """Returns the stack with the kernels that the run states."""
    if run.fused_norm is None:
        gaps.assume("fused_norm")
    if run.flash_attention is None:
        gaps.assume("flash_attention")
    named = _named_stack(framework.stack) if given is None else given
    return _with_kernels(named, run.fused_norm, run.flash_attention, framework.fused_experts)


@cache
def _named_stack(name: str) -> Stack:
    return load_stack(name)


@lru_cache(maxsize=512)  # one object for equal stacks, so that runs can be grouped by it
def _with_kernels(
    stack: Stack, fused_norm: int | None, flash_attention: int | None, fused_experts: bool
) -> Stack:
    kernels = {"fused_norm": fused_norm, "flash_attention": flash_attention}
    stated: dict[str, int] = {
        name: bool(value) for name, value in kernels.items() if value is not None
    }
    if flash_attention:
        stated["flash_attention_version"] = flash_attention
    if fused_experts:
        stated["fused_experts"] = True
    return stack.model_copy(update=stated) if stated else stack


def _offsets(run: Run, model: Model, layout: Layout, framework: Framework) -> Offsets | None:
    pieces = layout.pipeline_parallel * layout.virtual_stages
    if run.stage_boundaries is not None:
        return offsets_of_boundaries(run.stage_boundaries, model.num_layers, pieces)
    if framework.split == "by_cost" and pieces > 1:
        return offsets_by_cost(model, pieces)
    if framework.split == "by_module" and pieces > 1:
        return offsets_by_module(model, pieces)
    return None
