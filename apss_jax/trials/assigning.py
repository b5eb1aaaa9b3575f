"""A plan as work for processes: what is run of it, what stands in its place, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, NamedTuple

from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.layers import Attention, DenseMlp
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Plan
from apss_jax.trials.assignment import Assignment, Sizes

SCHEDULES: Final = ("1f1b", "gpipe")
# Emulated passes: long enough that a sleep's inaccuracy and the real work of a tiny model are
# nothing beside them.
LONGEST_EMULATED_S: Final = 0.5
TINY: Final = Sizes(hidden_size=32, num_heads=2, intermediate_size=64, vocab_size=64, seq_len=16)


def assignments_of(
    plans: Sequence[Plan], sizes: Sizes, *, steps: int, emulate: bool, file: str | None = None
) -> list[Assignment]:
    """Returns the work of each plan; raises `InputError` for what a trial cannot run.

    Emulated passes of all plans have one scale, so that steps tell which plan is best.
    """
    for plan in plans:
        _refuse(plan, file)
    emulated = emulated_times_s(plans) if emulate else [None] * len(plans)
    return [
        Assignment(
            schedule=plan.schedule,
            num_micro_batches=plan.num_micro_batches,
            micro_batch=1 if emulate else plan.micro_batch,
            data_parallel=1 if emulate else plan.data_parallel,
            tensor_parallel=1 if emulate else plan.tensor_parallel,
            recompute=plan.recompute == "full",
            layers=tuple(stage_layers(plan)),
            sizes=asdict(TINY if emulate else sizes),
            steps=steps,
            emulated_forward_s=times.forward_s if times else None,
            emulated_backward_s=times.backward_s if times else None,
        )
        for plan, times in zip(plans, emulated, strict=True)
    ]


def stage_layers(plan: Plan) -> list[int]:
    """Returns the layers of each stage."""
    return [sum(chunk.num_layers for chunk in stage.chunks) for stage in plan.stages]


class PassTimes(NamedTuple):
    """What the passes of each stage take."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]

    def times(self, factor: float) -> PassTimes:
        """Returns the times on another scale."""
        forward, backward = (tuple(factor * t for t in times) for times in self)
        return PassTimes(forward, backward)


def emulated_times_s(plans: Sequence[Plan]) -> list[PassTimes]:
    """Returns what passes take: as the plans say, the longest of all a fixed time.

    Where one of the plans has no times, every layer of all of them takes the same.
    """
    told = [_told_times(plan) for plan in plans]
    known = [times for times in told if times is not None]
    if len(known) < len(plans):
        known = [_equal_layers(plan) for plan in plans]
    scale = LONGEST_EMULATED_S / max(max(*one.forward_s, *one.backward_s) for one in known)
    return [one.times(scale) for one in known]


def _told_times(plan: Plan) -> PassTimes | None:
    forward = tuple(stage.forward_s for stage in plan.stages if stage.forward_s)
    backward = tuple(stage.backward_s for stage in plan.stages if stage.backward_s)
    if len(forward) < len(plan.stages) or len(backward) < len(plan.stages):
        return None
    return PassTimes(forward, backward)


def _equal_layers(plan: Plan) -> PassTimes:
    forward = tuple(float(max(count, 1)) for count in stage_layers(plan))
    return PassTimes(forward, tuple(2 * time_s for time_s in forward))


def sizes_of(model: Model, seq_len: int) -> Sizes:
    """Returns the sizes of a GPT with a model's widths; raises `InputError` without layers."""
    if not model.layers or model.hidden_size is None or model.embedding is None:
        raise mistake("--model", model.name, "has no layers of its own", "Name another model")
    layer = model.layers[0].layer
    mixer, feed_forward = layer.mixer, layer.feed_forward
    heads = mixer.num_heads if isinstance(mixer, Attention) else 1
    inner = 4 * model.hidden_size
    if isinstance(feed_forward, DenseMlp):
        # A gated MLP has three matrices where the plain one of this GPT has two.
        inner = feed_forward.intermediate_size * (3 if feed_forward.gated else 2) // 2
    return Sizes(
        hidden_size=model.hidden_size,
        num_heads=heads if model.hidden_size % heads == 0 else 1,
        intermediate_size=inner,
        vocab_size=model.embedding.vocab_size,
        seq_len=seq_len,
    )


def _refuse(plan: Plan, file: str | None) -> None:
    if len(plan.stages) != plan.pipeline_parallel:
        rule = f"are {len(plan.stages)}, but pipeline_parallel is {plan.pipeline_parallel}"
        raise mistake("stages", "", rule, "Name a plan that search or estimate wrote", file=file)
    if plan.schedule not in SCHEDULES:
        raise _cannot("schedule", plan.schedule, f"runs {' and '.join(SCHEDULES)} only", file)
    for key in ("context_parallel", "expert_parallel", "virtual_stages"):
        if getattr(plan, key) != 1:
            raise _cannot(key, getattr(plan, key), f"runs plans with {key} = 1 only", file)


def _cannot(key: str, value: object, rule: str, file: str | None) -> InputError:
    remedy = "Name a plan without it: search with --pin"
    return mistake(key, value, f"a trial {rule}", remedy, file=file)
