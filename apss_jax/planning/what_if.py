"""What else could be run in place of a plan: the best one, and the smallest changes that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Final

import numpy as np

from apss_jax.legality.check import violations
from apss_jax.legality.facts import Facts, facts_of
from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.clock import Clock
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.search import search_inputs
from apss_jax.planning.variants import change_words, costed, differences, mended
from apss_jax.schema.layout import RECOMPUTE, Layout
from apss_jax.schema.plan import Alternative, Estimate, Plan, WhatIf

SHOWN: Final = 5  # changes that are named
MOST_PAIRS: Final = 96  # pairs of changes that are costed, where no single one is enough
TRADED: Final = ("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel")


def what_if(inputs: Inputs, estimate: Estimate, *, compare: bool) -> WhatIf | None:
    """Returns the best plan if it shall be compared, and changes where a plan cannot be run.

    None where neither is asked for.
    """
    fits = estimate.legal and all(stage.fits is not False for stage in estimate.plan.stages)
    if fits and not compare:
        return None
    best = _best(inputs, estimate.plan) if compare else None
    changes = () if fits else smallest_changes(inputs, estimate.plan)
    return WhatIf(best=best, changes=changes)


def _best(inputs: Inputs, present: Plan) -> Alternative | None:
    plans = search_inputs(inputs, "exact", {}, 1, Clock()).plans
    return _alternative(plans[0], present) if plans else None


def smallest_changes(inputs: Inputs, present: Plan) -> tuple[Alternative, ...]:
    """Returns the changes after which a plan is legal and fits: single ones, else pairs.

    Of changes to the same things the fastest is kept. Layers are cut anew for each.
    """
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    start = layout_of(present)
    singles = list(dict.fromkeys(_changed(start)))
    found = _fitting(inputs, facts, [start, *singles], present)
    if not found:
        pairs = dict.fromkeys(second for first in singles for second in _changed(first))
        rest = [layout for layout in pairs if layout not in {start, *singles}]
        found = _fitting(inputs, facts, rest, present)
    return found[:SHOWN]


def _changed(layout: Layout) -> Iterator[Layout]:
    """Yields layouts one step away that may need less memory, or be legal where this is not."""
    for level in RECOMPUTE[RECOMPUTE.index(layout.recompute) + 1 :]:
        yield replace(layout, recompute=level)
    for size in range(layout.micro_batch - 1, 0, -1):
        if layout.micro_batch % size == 0:
            yield replace(layout, micro_batch=size)
    if layout.data_parallel * layout.context_parallel > 1:
        for stage in range(layout.zero_stage + 1, 4):
            yield replace(layout, zero_stage=stage)
    if layout.zero_shards is not None:
        yield replace(layout, zero_shards=None)
    yield mended(replace(layout, sequence_parallel=not layout.sequence_parallel))
    if layout.virtual_stages > 1:
        yield mended(replace(layout, virtual_stages=1))
    yield from _traded(layout)


def _traded(layout: Layout) -> Iterator[Layout]:
    """Yields layouts in which one degree is doubled and another halved."""
    for up, down in permutations(TRADED, 2):
        degree = getattr(layout, down)
        if degree % 2 == 0:
            values = {up: 2 * getattr(layout, up), down: degree // 2}
            yield mended(replace(layout, **values))


def _fitting(
    inputs: Inputs, facts: Facts, layouts: Iterable[Layout], present: Plan
) -> tuple[Alternative, ...]:
    """Returns those layouts that are legal and fit, fastest first, one for each kind of change."""
    legal = [layout for layout in layouts if not violations(layout, facts)][:MOST_PAIRS]
    plans = [plan for plan in costed(inputs, legal) if all(stage.fits for stage in plan.stages)]
    plans.sort(key=lambda plan: plan.cost.step_time_s if plan.cost else np.inf)
    start = layout_of(present)
    kinds: dict[frozenset[str], Plan] = {}
    for plan in plans:
        kinds.setdefault(frozenset(differences(start, layout_of(plan))), plan)
    return tuple(_alternative(plan, present) for plan in kinds.values())


def _alternative(plan: Plan, present: Plan) -> Alternative:
    assert plan.cost is not None  # it was costed
    layout = layout_of(plan)
    full = max(plan.stages, key=lambda stage: stage.oom_probability or 0.0)
    chunks = range(plan.virtual_stages)
    return Alternative(
        change=change_words(layout_of(present), layout),
        **vars(layout),
        split=tuple(stage.chunks[c].num_layers for c in chunks for stage in plan.stages),
        step_time_s=plan.cost.step_time_s,
        speedup=present.cost.step_time_s / plan.cost.step_time_s if present.cost else None,
        memory_bytes=max(s.memory_bytes.total for s in plan.stages if s.memory_bytes),
        oom_probability=full.oom_probability or 0.0,
    )
