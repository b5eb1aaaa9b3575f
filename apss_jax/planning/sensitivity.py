"""How the step times of plans answer to the batch and to the speed of links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from apss_jax.legality.check import violations
from apss_jax.legality.facts import facts_of
from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import cost_choices
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.plan_choice import choice_of
from apss_jax.planning.shortfall import excess_bytes
from apss_jax.planning.tables import cost_tables
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.detail import Question, Sensitivity, SensitivityPoint
from apss_jax.schema.plan import Plan

FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
Times = tuple[float | None, ...]
TimesFn = Callable[[float], Times]
"""Returns the step times of the plans under one factor, None where one cannot be run."""


def sensitivity_of(inputs: Inputs, plans: Sequence[Plan]) -> tuple[Sensitivity, ...]:
    """Returns the step times of plans under other batches and links; cuts and devices stay.

    Links are asked about only where a plan can use them.
    """
    batch = inputs.workload.global_batch
    batches = [batch * factor for factor in FACTORS if (batch * factor).is_integer()]
    found = [_series("global_batch", batches, batch, lambda b: _on_batch(inputs, plans, int(b)))]
    for name, links in _links(inputs.cluster):

        def times(factor: float, links: frozenset[str] = links) -> Times:
            return _step_times(inputs.on(_scaled(inputs.cluster, links, factor)), plans)

        found.append(_series(name, FACTORS, 1.0, times))
    return tuple(found)


def _series(name: Question, values: Sequence[float], present: float, times: TimesFn) -> Sensitivity:
    points = tuple(SensitivityPoint(value=value, step_time_s=times(value)) for value in values)
    return Sensitivity(name=name, present=present, points=points)


def _on_batch(inputs: Inputs, plans: Sequence[Plan], batch: int) -> Times:
    """Returns the step times with another number of micro-batches, where that is legal."""
    workload = inputs.workload.model_copy(update={"global_batch": batch})
    asked = replace(inputs, workload=workload)
    facts = facts_of(asked.model, asked.cluster, workload, asked.stack)
    changed = [
        plan.model_copy(update={"num_micro_batches": layout_of(plan).num_micro_batches(batch)})
        if not violations(layout_of(plan), facts)
        else None
        for plan in plans
    ]
    times = iter(_step_times(asked, [plan for plan in changed if plan]))
    return tuple(next(times) if plan else None for plan in changed)


def _step_times(inputs: Inputs, plans: Sequence[Plan]) -> Times:
    """Returns the step time of each plan, None where it does not fit."""
    if not plans:
        return ()
    tables = cost_tables(inputs, [layout_of(plan).setting for plan in plans])
    choices: list[Choice] = [choice_of(inputs, plan, tables) for plan in plans]
    costs = cost_choices(tables.problem, tables.index, choices)
    fits = excess_bytes(inputs, choices, costs) < 0
    times_s = inputs.stack.time_factor * costs.step_time_s
    return tuple(s if fit else None for s, fit in zip(times_s.tolist(), fits, strict=True))


def _links(cluster: ClusterProfile) -> Iterator[tuple[Question, frozenset[str]]]:
    """Yields the links between domains and inside of them, where there are any of that kind."""
    if cluster.num_domains > 1:
        bridges = [bridge.link for bridge in cluster.bridges]
        yield "network_speed", frozenset([group.network for group in cluster.nodes] + bridges)
    if any(group.devices * group.nodes_per_domain > 1 for group in cluster.nodes):
        yield "intra_speed", frozenset(group.intra_link for group in cluster.nodes)


def _scaled(cluster: ClusterProfile, links: frozenset[str], factor: float) -> ClusterProfile:
    """Returns the cluster with some links faster or slower; latencies stay."""
    changed = {
        name: link.model_copy(update={"bytes_per_s": factor * link.bytes_per_s})
        for name, link in cluster.links.items()
        if name in links
    }
    return cluster.model_copy(update={"links": {**cluster.links, **changed}})
