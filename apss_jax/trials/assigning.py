"""A plan as work for processes: what is run of it, what stands in its place, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.layers import Attention, DenseMlp
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Plan
from apss_jax.trials.assignment import Assignment, Sizes

SCHEDULES: Final = ("1f1b", "gpipe")
# Emulated passes: long enough that a sleep's inaccuracy and the real work of a tiny model are
# nothing beside them.
LONGEST_EMULATED_S: Final = 0.15
EMULATED_LAYER_S: Final = 0.01  # forward, where the plan does not say what stages take
TINY: Final = Sizes(hidden_size=32, num_heads=2, intermediate_size=64, vocab_size=64, seq_len=16)


def assignment_of(
    plan: Plan, sizes: Sizes, *, steps: int, emulate: bool, file: str | None = None
) -> Assignment:
    """Returns the work of one plan; raises `InputError` for what a trial cannot run."""
    _refuse(plan, file)
    layers = tuple(stage_layers(plan))
    forward_s, backward_s = emulated_times_s(plan, layers) if emulate else (None, None)
    return Assignment(
        schedule=plan.schedule,
        num_micro_batches=plan.num_micro_batches,
        micro_batch=1 if emulate else plan.micro_batch,
        data_parallel=1 if emulate else plan.data_parallel,
        tensor_parallel=1 if emulate else plan.tensor_parallel,
        recompute=plan.recompute == "full",
        layers=layers,
        sizes=asdict(TINY if emulate else sizes),
        steps=steps,
        emulated_forward_s=forward_s,
        emulated_backward_s=backward_s,
    )


def stage_layers(plan: Plan) -> list[int]:
    """Returns the layers of each stage."""
    return [sum(chunk.num_layers for chunk in stage.chunks) for stage in plan.stages]


def emulated_times_s(
    plan: Plan, layers: Sequence[int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns what forward and backward passes take: as the plan says, the longest a fixed time.

    A plan without times takes one for each layer.
    """
    forward = [stage.forward_s for stage in plan.stages]
    backward = [stage.backward_s for stage in plan.stages]
    known_f = [time_s for time_s in forward if time_s]
    known_b = [time_s for time_s in backward if time_s]
    if len(known_f) < len(layers) or len(known_b) < len(layers):
        known_f = [EMULATED_LAYER_S * max(count, 1) for count in layers]
        known_b = [2 * time_s for time_s in known_f]
    scale = LONGEST_EMULATED_S / max(*known_f, *known_b)
    return tuple(scale * t for t in known_f), tuple(scale * t for t in known_b)


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
