"""Why a plan costs what it costs, and why it is first: sentences with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from apss_jax.planning.inputs import Inputs
from apss_jax.schema.plan import Plan, Stage
from apss_jax.units import GIB, MS

PART_NAMES = {
    "compute": "compute",
    "tensor_comm": "communication inside the layers",
    "pipeline_bubble": "waiting for other stages (pipeline bubble)",
    "pipeline_comm": "transfers between stages",
    "data_comm": "gradient reduction that compute does not hide",
    "optimizer": "the optimizer update",
    "other": "fixed work of each step",
}
NAMED_SHARE = 0.05  # of the step, from which on a part is worth a word
NEAR_FULL_FRACTION = 0.85  # of the memory, above which allocators begin to struggle
DEGREES = {
    "tensor_parallel": "tensor",
    "pipeline_parallel": "pipeline",
    "data_parallel": "data",
    "context_parallel": "context",
    "expert_parallel": "expert",
    "virtual_stages": "virtual stages",
    "micro_batch": "micro-batch",
    "zero_stage": "ZeRO",
    "recompute": "recompute",
}


def explain_alone(plan: Plan, inputs: Inputs) -> tuple[str, ...]:
    """Returns what bounds a plan: its time, its slowest stage, its fullest stage, its guesses."""
    said = [_time_sentence(plan), _memory_sentence(plan)]
    said += _pace_sentences(plan) + _idle_sentences(plan, inputs) + _trust_sentences(plan)
    return tuple(sentence for sentence in said if sentence)


def explain_ranked(plan: Plan, others: Sequence[Plan], inputs: Inputs) -> tuple[str, ...]:
    """Returns the sentences of a plan alone, and what sets it apart from its nearest rival."""
    said = list(explain_alone(plan, inputs))
    rival = next((other for other in others if other.rank != plan.rank), None)
    if rival is not None and plan.cost and rival.cost:
        said.append(_rival_sentence(plan, rival))
        if plan.rank > rival.rank:
            said.append(_winning_sentence(plan, rival))
    return tuple(said)


def _time_sentence(plan: Plan) -> str:
    if plan.cost is None:
        return ""
    parts = plan.cost.breakdown_s.model_dump()
    step_s = plan.cost.step_time_s
    named = sorted(parts.items(), key=lambda item: -item[1])
    said = [
        f"{percent(value / step_s)} {PART_NAMES[name]}"
        for name, value in named
        if value / step_s >= NAMED_SHARE
    ]
    bound = PART_NAMES[named[0][0]]
    return f"bound by {bound}: of {step_s:.3g} s on the busiest stage {', '.join(said)}"


def _memory_sentence(plan: Plan) -> str:
    sized = [(i, s.memory_bytes) for i, s in enumerate(plan.stages) if s.memory_bytes]
    if not sized:
        return ""
    index, need = max(sized, key=lambda item: item[1].total / item[1].capacity)
    share = need.total / need.capacity
    largest = max(("weights", "gradients", "optimizer", "activations", "other"),
                  key=lambda name: getattr(need, name))  # fmt: skip
    sentence = (
        f"stage {index} needs most memory: {need.total / GIB:.1f} of "
        f"{need.capacity / GIB:.1f} GiB ({percent(share)}), mostly {largest}"
    )
    if share > 1:
        return f"{sentence}; that is more than there is"
    if share > NEAR_FULL_FRACTION:
        return f"{sentence}; so near full, expect allocator retries and a slower step"
    return sentence


def percent(fraction: float, decimals: int = 0) -> str:
    """Returns a share in percent."""
    return f"{100 * fraction:.{decimals}f} %"


def _pace_sentences(plan: Plan) -> list[str]:
    times = [_micro_batch_s(stage) for stage in plan.stages]
    if len(times) < 2 or min(times) <= 0:
        return []
    slow, fast = max(times), min(times)
    if slow / fast < 1 + NAMED_SHARE:
        return [f"stages are balanced within {percent(slow / fast - 1, decimals=1)}"]
    return [
        f"stage {times.index(slow)} sets the pace with {slow / MS:.1f} ms for each micro-batch; "
        f"stage {times.index(fast)} needs {fast / MS:.1f} ms"
    ]


def _micro_batch_s(stage: Stage) -> float:
    return (stage.forward_s or 0.0) + (stage.backward_s or 0.0)


def _idle_sentences(plan: Plan, inputs: Inputs) -> list[str]:
    used = sum(len(stage.devices) for stage in plan.stages)
    idle = inputs.cluster.num_devices - used
    return [f"{idle} of {inputs.cluster.num_devices} devices stay idle"] if idle else []


def _trust_sentences(plan: Plan) -> list[str]:
    measured = plan.provenance.get("measured", 0.0)
    if measured >= 1.0 - NAMED_SHARE:
        return ["layer times are measured"]
    return [
        f"{percent(1.0 - measured)} of the compute time is computed from datasheets, not measured"
    ]


def _rival_sentence(plan: Plan, rival: Plan) -> str:
    assert plan.cost is not None and rival.cost is not None
    mine_s, theirs_s = plan.cost.step_time_s, rival.cost.step_time_s
    change = _differences(plan, rival) or "another order of devices or cuts"
    part, change_s = largest_change(plan, rival)
    where = f"the largest change: {PART_NAMES[part]} ({change_s:+.3g} s)"
    if theirs_s >= mine_s:
        longer = percent(theirs_s / mine_s - 1.0, decimals=1)
        return f"rank {rival.rank} ({change}) takes {longer} longer; {where}"
    slower = percent(mine_s / theirs_s - 1.0, decimals=1)
    return f"{slower} slower than rank {rival.rank} ({change}); {where}"


def _differences(plan: Plan, rival: Plan) -> str:
    said = [
        f"{name} {getattr(rival, field)} instead of {getattr(plan, field)}"
        for field, name in DEGREES.items()
        if getattr(rival, field) != getattr(plan, field)
    ]
    return ", ".join(said)


def largest_change(plan: Plan, rival: Plan) -> tuple[str, float]:
    """Returns the part that differs most in the direction of the step, and by how many seconds."""
    assert plan.cost is not None and rival.cost is not None
    mine, theirs = plan.cost.breakdown_s.model_dump(), rival.cost.breakdown_s.model_dump()
    slower = rival.cost.step_time_s >= plan.cost.step_time_s
    sign = 1.0 if slower else -1.0
    name = max(mine, key=lambda part: sign * (theirs[part] - mine[part]))
    return name, theirs[name] - mine[name]


def _winning_sentence(plan: Plan, first: Plan) -> str:
    """Returns what a plan would have to save to be first, as shares of its parts."""
    assert plan.cost is not None and first.cost is not None
    gap_s = plan.cost.step_time_s - first.cost.step_time_s
    if gap_s <= 0:
        return "it is as fast as rank 1; the order of costing decides"
    parts = plan.cost.breakdown_s.model_dump()
    enough = sorted((gap_s / value, name) for name, value in parts.items() if value > gap_s)
    said = " or ".join(f"{percent(share, 1)} of its {_short(name)}" for share, name in enough[:3])
    share = percent(gap_s / plan.cost.step_time_s, 1)
    said = said or "no single part is as long"
    return f"to win it would have to save {gap_s:.3g} s ({share}): {said}"


def _short(name: str) -> str:
    return PART_NAMES[name].removeprefix("the ").partition(" (")[0]
