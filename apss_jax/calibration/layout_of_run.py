"""The layout that a run had: degrees that are blank are derived from the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import gcd
from typing import Final

from apss_jax.calibration.gaps import Gaps, UnusableRunError
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import ScheduleName
from apss_jax.schema.references import Framework
from apss_jax.schema.runs import Run

FILLING_ROUNDS = 8  # micro-batches per stage that keep the bubble near a tenth
# How notes say over how many data ranks states are sharded: InternEvo's zero1 group (-1: all), the
# fsdp degree of MaxText and Paxml.
STATED_SHARDS: Final = re.compile(r"\b(?:zero1 group|FSDP)=(\d+)\b")
# Hybrid sharding, where nobody gives a degree: within a node (PyTorch's ShardingStrategy).
WITHIN_NODE: Final = re.compile(r"\bHSDP\b")
NO_LAYOUT = "no layout: of tp, pp and dp at most one may be blank"


@dataclass(frozen=True)
class Degrees:
    """How the devices are split; their product is the number of devices."""

    data: int
    tensor: int
    pipeline: int
    context: int

    @property
    def shards(self) -> int:
        """Returns over how many devices each parameter is repeated or sharded."""
        return self.data * self.context


def degrees_of_run(run: Run, num_devices: int, gaps: Gaps) -> Degrees:
    """Returns the degrees; raises `UnusableRunError` where they cannot be derived."""
    context = gaps.fill("cp", run.cp, 1)
    if run.dp == num_devices and context == 1:
        return Degrees(run.dp, run.tp or 1, run.pp or 1, 1)
    given = {"data": run.dp, "tensor": run.tp, "pipeline": run.pp}
    blank = [name for name, degree in given.items() if degree is None]
    if len(blank) > 1:
        raise UnusableRunError(NO_LAYOUT)
    known = {name: degree for name, degree in given.items() if degree is not None}
    if not blank and _product(known, context) != num_devices:
        del known["data"]  # tensor and pipeline degrees are settings, the data degree is the rest
        blank = ["data"]
        gaps.assume("dp")
    if blank:
        rest, left = divmod(num_devices, _product(known, context))
        if left or not rest:
            raise UnusableRunError("no layout: the degrees do not divide the GPUs")
        known[blank[0]] = rest
    return Degrees(**known, context=context)


def _product(degrees: dict[str, int], context: int) -> int:
    total = context
    for degree in degrees.values():
        total *= degree
    return total


def layout_of_run(
    run: Run, degrees: Degrees, framework: Framework, gaps: Gaps, *, has_experts: bool
) -> Layout:
    """Returns the layout, blanks filled with the framework's habits."""
    pipelined = degrees.pipeline > 1
    chunks = _filled(gaps, "vpp", run.vpp, 1, matters=pipelined) if pipelined else 1
    split = degrees.tensor > 1
    habit = framework.sequence_parallel
    sequence = _filled(gaps, "sequence_parallel", run.sequence_parallel, habit, matters=split)
    layout = Layout(
        tensor_parallel=degrees.tensor,
        pipeline_parallel=degrees.pipeline,
        data_parallel=degrees.data,
        context_parallel=degrees.context,
        expert_parallel=_expert_parallel(run, degrees, gaps) if has_experts else 1,
        virtual_stages=chunks,
        micro_batch=_micro_batch(run, degrees, gaps),
        zero_stage=_filled(
            gaps, "zero_stage", run.zero_stage, framework.zero_stage, matters=degrees.shards > 1
        ),
        recompute=gaps.fill("recompute", run.recompute, framework.recompute),
        sequence_parallel=bool(sequence) and split,
        schedule=_schedule(run, chunks, gaps),
    )
    return replace(layout, zero_shards=_zero_shards(run, layout))


def _zero_shards(run: Run, layout: Layout) -> int | None:
    """Returns over how many ranks ZeRO shards, None where over all or in no even groups."""
    stated = run.zero_shards or _noted_shards(run, layout)
    ranks = layout.data_parallel * layout.context_parallel
    if not stated or layout.zero_stage == 0 or stated >= ranks:
        return None
    return None if ranks % stated or stated % layout.expert_parallel else stated


def _noted_shards(run: Run, layout: Layout) -> int | None:
    said = STATED_SHARDS.search(run.note or "")
    if said:
        return int(said.group(1)) * layout.context_parallel
    if WITHIN_NODE.search(run.note or "") and run.gpus_per_node:
        return run.gpus_per_node // layout.tensor_parallel
    return None


def _filled(gaps: Gaps, field: str, given: int | None, default: int, *, matters: bool) -> int:
    """Returns the given value or the default; a blank counts only where it makes a difference."""
    if given is None and not matters:
        return default
    return gaps.fill(field, given, default)


def _schedule(run: Run, chunks: int, gaps: Gaps) -> ScheduleName:
    if chunks > 1:
        return "interleaved_1f1b"
    if run.schedule is None and (run.pp or 1) > 1:
        gaps.assume("schedule")
    return "gpipe" if run.schedule == "gpipe" else "1f1b"


def _micro_batch(run: Run, degrees: Degrees, gaps: Gaps) -> int:
    if run.micro_batch is None and run.global_batch == degrees.data:
        return 1
    return gaps.fill("micro_batch", run.micro_batch, 1)


def _expert_parallel(run: Run, degrees: Degrees, gaps: Gaps) -> int:
    """Returns over how many of the devices that share a tensor rank experts are spread.

    Frameworks that do not split experts by the tensor degree spread them over its ranks too; then
    the same bytes are held per device when the rest of the degree is spread.
    """
    given = gaps.fill("ep", run.ep, 1)
    if degrees.shards % given == 0:
        return given
    rest, left = divmod(given, degrees.tensor)
    if not left and rest and degrees.shards % rest == 0:
        return rest
    gaps.assume("ep")
    return gcd(degrees.shards, given)


def _sequences_of_a_step(run: Run) -> int | None:
    """Returns them from the step time and tokens per second, None where either is not given."""
    if not (run.step_time_s and run.tokens_per_s_per_gpu and run.num_gpus and run.seq_len):
        return None
    return round(run.step_time_s * run.tokens_per_s_per_gpu * run.num_gpus / run.seq_len) or None


def batch_of_run(
    run: Run, layout: Layout, gaps: Gaps, *, accumulates: bool = False
) -> tuple[int, int]:
    """Returns sequences per step and micro-batches per step.

    A blank batch is what the run's tokens per second make in a step, else one micro-batch, or as
    many as keep a pipeline filled, which frameworks that accumulate gradients have without one too;
    where a batch does not divide, the number of micro-batches is rounded.
    """
    samples = layout.data_parallel * layout.micro_batch
    stages = layout.pipeline_parallel
    usual = FILLING_ROUNDS * stages if stages > 1 or accumulates else 1
    stated = run.global_batch or _sequences_of_a_step(run)
    batch = gaps.fill("global_batch", stated, samples * usual)
    if batch % samples:
        gaps.assume("num_micro_batches")
    return batch, max(1, round(batch / samples))
