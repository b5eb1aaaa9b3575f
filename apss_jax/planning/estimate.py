"""One plan: is it legal, does it fit, how fast is it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from apss_jax.legality.facts import Facts, facts_of
from apss_jax.legality.plan_check import layout_of, plan_violations
from apss_jax.planning.costing import cost_choices
from apss_jax.planning.documents import PlanWriter
from apss_jax.planning.explain import explain_alone
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.plan_choice import choice_of
from apss_jax.planning.tables import cost_tables
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import mistake
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Chunk, Estimate, Plan, Stage
from apss_jax.schema.stack import Stack

# Rules whose breach leaves nothing to cost; other illegal plans are costed all the same, because
# people want to know what they would have got.
UNCOSTABLE = frozenset(
    {"degrees", "devices", "placement", "precision", "table_degrees", "batch", "micro_batches"}
    | {
        "depth",
        "schedule",
        "interleaving",
        "rounds",
        "expert_groups",
        "zero_shards",
        "stages",
        "layers",
        "stage_devices",
    }
)


def estimate_plan(
    model: Model | str,
    cluster: ClusterProfile | str,
    plan: Plan | Layout,
    *,
    global_batch: int | None = None,
    seq_len: int | None = None,
    precision: str | None = None,
    stack: Stack | str | None = None,
    split: Sequence[int] | None = None,
) -> Estimate:
    """Returns legality, memory and cost of one plan.

    Batch, sequence length, precision and stack default to what the plan says. `split` gives the
    layers of each virtual stage; without it, and without stages in the plan, the exact solver
    cuts. An illegal plan is answered, not refused; raises `InputError` for wrong input.
    """
    batch = _given_or(global_batch, plan, "global_batch")
    if batch is None:
        raise mistake("--global-batch", "", "is missing, and the plan does not say it", "Give it")
    inputs = gather_inputs(
        model,
        cluster,
        global_batch=batch,
        seq_len=_given_or(seq_len, plan, "seq_len"),
        precision=_given_or(precision, plan, "precision"),
        stack=_given_or(stack, plan, "stack"),
    )
    document = plan if isinstance(plan, Plan) else plan_of(plan, batch)
    if split is not None:
        document = document.model_copy(update={"stages": stages_of(document, split)})
    return _estimate(inputs, document)


def _given_or(value: Any, plan: Plan | Layout, field: str) -> Any:
    """Returns the value if there is one, else what the plan says, if it says it."""
    return value if value is not None else getattr(plan, field, None)


def plan_of(layout: Layout, global_batch: int) -> Plan:
    """Returns a layout as a plan without stages."""
    return Plan(
        **{**vars(layout)},
        num_micro_batches=max(layout.num_micro_batches(global_batch), 1),
        global_batch=global_batch,
    )


def stages_of(plan: Plan, split: Sequence[int]) -> tuple[Stage, ...]:
    """Returns stages with the given layers on each virtual stage, ends on the first and last.

    Raises `InputError` unless there is one count for each virtual stage.
    """
    stages, chunks = plan.pipeline_parallel, plan.virtual_stages
    if len(split) != stages * chunks or min(split, default=0) < 0:
        shape = f"{stages} stages x {chunks} chunks"
        rule = f"must be {stages * chunks} layer counts of 0 or more ({shape})"
        raise mistake("--split", ",".join(map(str, split)), rule, "Give one count for each")
    starts = np.concatenate([[0], np.cumsum(split)])
    last = len(split) - 1

    def chunk(index: int) -> Chunk:
        return Chunk(
            first_layer=int(starts[index]),
            num_layers=split[index],
            embedding=index == 0,
            head=index == last,
        )

    return tuple(
        Stage(chunks=tuple(chunk(c * stages + s) for c in range(chunks))) for s in range(stages)
    )


def _estimate(inputs: Inputs, plan: Plan) -> Estimate:
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    broken = plan_violations(_as_table(plan, facts), facts)
    can_cost = not any(violation.rule in UNCOSTABLE for violation in broken)
    return Estimate(
        legal=not broken,
        violations=broken,
        plan=_costed(inputs, plan) if can_cost else _without_figures(plan),
        assumptions=inputs.assumptions,
        warnings=() if can_cost else ("the plan has no cost, because it cannot be laid out",),
    )


def _without_figures(plan: Plan) -> Plan:
    """Returns the choice alone: figures that a plan file brought are not this estimate's."""
    stages = tuple(Stage(chunks=stage.chunks, devices=stage.devices) for stage in plan.stages)
    return plan.model_copy(
        update={"stages": stages, "cost": None, "provenance": {}, "explanation": ()}
    )


def _as_table(plan: Plan, facts: Facts) -> Plan:
    """Returns the plan without ends, where the model is a table and has none."""
    if facts.has_ends or not plan.stages:
        return plan
    bare = [
        stage.model_copy(
            update={
                "chunks": tuple(
                    chunk.model_copy(update={"embedding": False, "head": False})
                    for chunk in stage.chunks
                )
            }
        )
        for stage in plan.stages
    ]
    return plan.model_copy(update={"stages": tuple(bare)})


def _costed(inputs: Inputs, plan: Plan) -> Plan:
    tables = cost_tables(inputs, [layout_of(plan).setting])
    choice = choice_of(inputs, plan, tables)
    costs = cost_choices(tables.problem, tables.index, [choice])
    writer = PlanWriter(inputs, tables)
    written = writer.plan(choice, costs, 0)
    return written.model_copy(update={"explanation": explain_alone(written, inputs)})
