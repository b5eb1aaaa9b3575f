"""The layouts one step away from a plan: what they would cost, and why they lose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from apss_jax.legality.check import violations
from apss_jax.legality.facts import facts_of
from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.explain import PART_NAMES, largest_change, percent
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.variants import change_words, costed, mended
from apss_jax.schema.detail import Neighbour, Verdict
from apss_jax.schema.layout import RECOMPUTE, Layout
from apss_jax.schema.plan import Plan
from apss_jax.units import GIB

ORDERS: Final = 3  # of devices, on which a neighbour is costed
SAID_OF_FIRST, SAID_OF_OTHERS = 8, 3
# What a degree is traded against: the first that can be halved or doubled in its place.
TRADES: Final = {
    "tensor_parallel": ("data_parallel", "pipeline_parallel"),
    "pipeline_parallel": ("data_parallel", "tensor_parallel"),
    "context_parallel": ("data_parallel", "tensor_parallel"),
}
Known = dict[Layout, Plan]


def neighbours_of(inputs: Inputs, plans: Sequence[Plan]) -> tuple[Neighbour, ...]:
    """Returns the neighbours of every plan, costed as the plans are, those that come nearest first.

    Cuts are the exact solver's, on the usual orders of devices.
    """
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    steps = [(plan, one) for plan in plans for one in _steps(layout_of(plan))]
    broken = {layout: violations(layout, facts) for _, layout in steps}
    legal = [layout for layout, rules in broken.items() if not rules]
    known = _fastest(costed(inputs, legal, orders=ORDERS))
    found = []
    for plan, layout in steps:
        change = change_words(layout_of(plan), layout)
        if broken[layout]:
            reason = broken[layout][0].message
            found.append(Neighbour(rank=plan.rank, change=change, verdict="illegal", reason=reason))
        elif layout in known:
            found.append(_neighbour(plan, known[layout], change))
    return tuple(sorted(found, key=_nearness))


def _nearness(one: Neighbour) -> tuple[int, bool, float]:
    return (one.rank, one.verdict == "illegal", one.time_ratio or 0.0)


def _fastest(plans: Sequence[Plan]) -> Known:
    """Returns of each layout the fastest plan that fits, else the fastest."""
    known: Known = {}
    for plan in plans:
        layout = layout_of(plan)
        if layout not in known or _badness(plan) < _badness(known[layout]):
            known[layout] = plan
    return known


def _badness(plan: Plan) -> tuple[bool, float]:
    return (not _fits(plan), _step_s(plan))


def _fits(plan: Plan) -> bool:
    return all(stage.fits for stage in plan.stages)


def _step_s(plan: Plan) -> float:
    assert plan.cost is not None  # it was costed
    return plan.cost.step_time_s


def _steps(layout: Layout) -> Iterator[Layout]:
    """Yields the layouts one step away, each once."""
    found = [*_traded(layout), *_others(layout)]
    yield from (one for one in dict.fromkeys(found) if one != layout)


def _traded(layout: Layout) -> Iterator[Layout]:
    """Yields layouts with one degree doubled or halved, on as many devices."""
    for name, others in TRADES.items():
        degree = getattr(layout, name)
        down = next((other for other in others if getattr(layout, other) % 2 == 0), None)
        if down:
            yield _with(layout, name, 2 * degree, down, getattr(layout, down) // 2)
        if degree % 2 == 0:
            up = others[0]
            yield _with(layout, name, degree // 2, up, 2 * getattr(layout, up))


def _with(layout: Layout, name: str, value: int, other: str, other_value: int) -> Layout:
    """Returns a layout with two degrees changed, sequence parallel where tensor parallel begins."""
    begins = name == "tensor_parallel" and layout.tensor_parallel == 1
    sequence = layout.sequence_parallel or begins
    changed: dict[str, Any] = {name: value, other: other_value, "sequence_parallel": sequence}
    return mended(replace(layout, **changed))


def _others(layout: Layout) -> Iterator[Layout]:
    yield replace(layout, micro_batch=2 * layout.micro_batch)
    if layout.micro_batch % 2 == 0:
        yield replace(layout, micro_batch=layout.micro_batch // 2)
    yield from (replace(layout, recompute=level) for level in RECOMPUTE)
    if layout.pipeline_parallel > 1:
        yield mended(replace(layout, virtual_stages=2 * layout.virtual_stages))
        yield mended(replace(layout, virtual_stages=max(layout.virtual_stages // 2, 1)))
    if layout.data_parallel * layout.context_parallel > 1:
        nearest = {max(layout.zero_stage - 1, 0), min(layout.zero_stage + 1, 3)}
        yield from (replace(layout, zero_stage=stage) for stage in sorted(nearest))
    yield mended(replace(layout, sequence_parallel=not layout.sequence_parallel))


def _neighbour(plan: Plan, other: Plan, change: str) -> Neighbour:
    ratio = _step_s(other) / _step_s(plan)
    part, change_s = largest_change(plan, other)
    stage = max(range(len(other.stages)), key=lambda s: other.stages[s].oom_probability or 0.0)
    held = other.stages[stage].memory_bytes
    fitting: Verdict = "slower" if ratio >= 1.0 else "faster"
    return Neighbour(
        rank=plan.rank,
        change=change,
        verdict=fitting if _fits(other) else "too_big",
        step_time_s=_step_s(other),
        time_ratio=ratio,
        largest_part=part,
        largest_change_s=change_s,
        fullest_stage=stage,
        memory_bytes=held.total if held else None,
        capacity_bytes=held.capacity if held else None,
        oom_probability=other.stages[stage].oom_probability,
    )


def neighbour_sentences(found: Sequence[Neighbour], rank: int) -> tuple[str, ...]:
    """Returns why the neighbours of one plan lose: what memory forbids first, then the nearest."""
    own = [one for one in found if one.rank == rank]
    forbidden = [one for one in own if one.verdict == "too_big" and (one.time_ratio or 1) < 1]
    rest = [one for one in own if one not in forbidden]
    most = SAID_OF_FIRST if rank == 1 else SAID_OF_OTHERS
    said = [_forbidden(one) for one in forbidden[:1]]
    return tuple(said + [_sentence(one) for one in forbidden[1:] + rest][: most - len(said)])


def _forbidden(one: Neighbour) -> str:
    less = percent(1.0 - (one.time_ratio or 1.0), 1)
    return f"memory bounds it: {one.change} would take {less} less time, but {_need(one)}"


def _sentence(one: Neighbour) -> str:
    if one.verdict == "illegal":
        return f"{one.change} is not legal: {one.reason}"
    if one.verdict == "too_big":
        return f"{one.change} does not fit: {_need(one)}"
    ratio, change_s = one.time_ratio or 1.0, one.largest_change_s or 0.0
    part = PART_NAMES[one.largest_part or "other"]
    longer = percent(abs(ratio - 1.0), 1)
    word = "longer" if one.verdict == "slower" else "less time"
    return f"{one.change} takes {longer} {word}, mostly {part} ({change_s:+.3g} s)"


def _need(one: Neighbour) -> str:
    need, there = (one.memory_bytes or 0.0) / GIB, (one.capacity_bytes or 0.0) / GIB
    said = f"stage {one.fullest_stage} would need {need:.1f} of {there:.1f} GiB"
    if need > there:
        return said
    return f"{said} and run out with a chance of {percent(one.oom_probability or 0.0)}"
