"""What a launcher must be told, and what each framework accepts of it: named rules with sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from apss_jax.legality.launch import Launch
from apss_jax.schema.plan import Plan

RefusalFn = Callable[[Launch], str | None]
"""Returns why a framework would refuse a plan, or run another one; None where it would not."""

PlanTest = Callable[[Plan], bool]
"""Returns whether a plan, whatever its model and cluster, breaks a rule."""


def where(breaks: PlanTest, reason: str) -> RefusalFn:
    """Returns the refusal of plans that pass a test; the reason has the plan's fields in braces."""
    return lambda launch: reason.format(plan=launch.plan) if breaks(launch.plan) else None


@dataclass(frozen=True)
class FrameworkRule:
    """A named rule of one framework, or of all."""

    name: str
    refusal: RefusalFn
    source: str


@dataclass(frozen=True)
class Refusal:
    """A rule that a plan breaks, why, and who says so."""

    rule: str
    reason: str
    source: str


def refusals(launch: Launch, rules: Sequence[FrameworkRule]) -> tuple[Refusal, ...]:
    """Returns every rule that a plan breaks; those of all frameworks first, and alone if broken."""
    found = _broken(launch, COMMON)
    return found or _broken(launch, rules)


def _broken(launch: Launch, rules: Sequence[FrameworkRule]) -> tuple[Refusal, ...]:
    reasons = [(rule, rule.refusal(launch)) for rule in rules]
    return tuple(Refusal(r.name, reason, r.source) for r, reason in reasons if reason is not None)


def _stages(launch: Launch) -> str | None:
    plan = launch.plan
    if not plan.stages:
        return "the plan does not say which layers each stage holds"
    if len(plan.stages) != plan.pipeline_parallel:
        return f"{len(plan.stages)} stages are listed for pipeline {plan.pipeline_parallel}"
    if any(len(stage.chunks) != plan.virtual_stages for stage in plan.stages):
        return f"not every stage has {plan.virtual_stages} chunks"
    return None


def _layers(launch: Launch) -> str | None:
    expected = 0
    for index, chunk in enumerate(launch.chunks):
        if chunk.num_layers and chunk.first_layer != expected:
            return f"virtual stage {index} starts at layer {chunk.first_layer}, not {expected}"
        expected += chunk.num_layers
    held = launch.model.num_layers if launch.model else expected
    if held != expected:
        return f"the stages hold {expected} of the model's {held} layers"
    return None


def _ends(launch: Launch) -> str | None:
    last = len(launch.chunks) - 1
    for name, place in (("embedding", 0), ("head", last)):
        holders = [i for i, chunk in enumerate(launch.chunks) if getattr(chunk, name)]
        if holders != [place]:
            return f"the {name} must stand in virtual stage {place} and nowhere else"
    return None


def _batch(launch: Launch) -> str | None:
    plan = launch.plan
    samples = plan.data_parallel * plan.micro_batch * plan.num_micro_batches
    if plan.global_batch is None or plan.seq_len is None:
        return "the plan does not say its global batch and sequence length"
    if samples != plan.global_batch:
        return (
            f"data {plan.data_parallel} x micro-batch {plan.micro_batch} x "
            f"{plan.num_micro_batches} = {samples} is not the global batch {plan.global_batch}"
        )
    return None


def _devices(launch: Launch) -> str | None:
    per_stage = launch.world // max(launch.plan.pipeline_parallel, 1)
    if any(len(stage.devices) != per_stage for stage in launch.plan.stages):
        return f"not every stage lists its {per_stage} devices"
    twice = [device for device, uses in Counter(launch.ranks).items() if uses > 1]
    return f"device {twice[0]} is used more than once" if twice else None


def _architecture(launch: Launch) -> str | None:
    if launch.model is not None and launch.model.table is not None:
        return "a table of measured layers is no architecture that a framework could build"
    return None


COMMON: Final = (
    FrameworkRule("architecture", _architecture, "what a launcher needs"),
    FrameworkRule("stages", _stages, "what a launcher needs"),
    FrameworkRule("layers", _layers, "no layer may be lost or trained twice"),
    FrameworkRule("ends", _ends, "a pipeline begins with the embedding and ends with the head"),
    FrameworkRule("batch", _batch, "replicas x micro-batch x micro-batches are one step"),
    FrameworkRule("devices", _devices, "a rank is one device"),
)


ONLY_1F1B: Final = where(
    lambda plan: plan.schedule == "gpipe" and plan.pipeline_parallel > 1,
    "it has no GPipe schedule, under which all forward passes come first",
)


def full_rounds(launch: Launch) -> str | None:
    """Returns why interleaving is refused: without a pipeline, or with a part of a round."""
    plan = launch.plan
    if plan.virtual_stages == 1:
        return None
    if plan.pipeline_parallel < 2:
        return "virtual stages need a pipeline of at least 2"
    if plan.num_micro_batches % plan.pipeline_parallel:
        return (
            f"{plan.num_micro_batches} micro-batches are no multiple of pipeline "
            f"{plan.pipeline_parallel}"
        )
    return None


def one_type(launch: Launch) -> str | None:
    """Returns why one compiled program for all refuses devices of several types."""
    types = launch.device_types
    if len(types) > 1:
        return f"one compiled program runs on every device, and these are {' and '.join(types)}"
    return None


def equal_stages(launch: Launch) -> str | None:
    """Returns why a framework whose stages are one array refuses different stages."""
    if launch.is_even:
        return None
    return f"its stages have equally many layers, and the plan's have {_shown(launch.split)}"


def _shown(split: Sequence[int]) -> str:
    text = ",".join(map(str, split[:16]))
    return f"{text},..." if len(split) > 16 else text
