"""What a trial showed: measured steps against the simulator, fed in two ways."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

import jax.numpy as jnp

from apss_jax.cost.schedule import build_table
from apss_jax.cost.simulate import StageTimes, simulate
from apss_jax.schema.trial import PlanTrial, StageTrial
from apss_jax.trials.assignment import Assignment, StageRecord

SENDER_WAITS: Final = 1.0  # share of a transfer: messages go from hand to hand


def outcome_of(
    assignment: Assignment,
    records: Sequence[StageRecord],
    *,
    rank: int = 1,
    planned_step_s: float | None = None,
) -> PlanTrial:
    """Returns measured and predicted step times of one plan."""
    stages = [
        _stage(assignment.layers[i], record, assignment.num_micro_batches)
        for i, record in enumerate(records)
    ]
    steps_s = step_times_s(records)
    measured_s = median(steps_s)
    alone_s = predicted_s(
        assignment, [(s.solo_forward_s, s.solo_backward_s) for s in stages], stages
    )
    in_step_s = predicted_s(assignment, [(s.forward_s, s.backward_s) for s in stages], stages)
    losses = [step.loss for step in records[-1].steps if step.loss is not None]
    return PlanTrial(
        rank=rank,
        measured_step_s=measured_s,
        fastest_step_s=min(steps_s),
        slowest_step_s=max(steps_s),
        predicted_step_s=alone_s,
        predicted_from_step_s=in_step_s,
        planned_step_s=planned_step_s,
        schedule_error_fraction=in_step_s / measured_s - 1,
        profile_error_fraction=alone_s / in_step_s - 1,
        total_error_fraction=alone_s / measured_s - 1,
        first_loss=losses[0],
        last_loss=losses[-1],
        stages=tuple(stages),
    )


def step_times_s(records: Sequence[StageRecord]) -> list[float]:
    """Returns the time of each step: from the first stage's start to the last one's end."""
    return [
        max(step.end_s for step in steps) - min(step.start_s for step in steps)
        for steps in zip(*(record.steps for record in records), strict=True)
    ]


def predicted_s(
    assignment: Assignment,
    passes_s: Sequence[tuple[float, float]],
    stages: Sequence[StageTrial],
) -> float:
    """Returns the simulated step of stages whose passes take so long, forward and backward."""
    table = build_table(assignment.schedule, assignment.num_stages, assignment.num_micro_batches)
    sent_s = [stage.transfer_s or 0.0 for stage in stages]
    times = StageTimes(
        forward_s=jnp.array([[forward for forward, _ in passes_s]]),
        backward_s=jnp.array([[backward for _, backward in passes_s]]),
        forward_transfer_s=jnp.array([sent_s]),
        backward_transfer_s=jnp.array([[0.0, *sent_s[:-1]]]),
        tail_s=jnp.array([stage.update_s for stage in stages]),
        blocking_fraction=jnp.array(SENDER_WAITS),
    )
    return float(simulate(table, times).step_time_s)


def _stage(num_layers: int, record: StageRecord, num_micro_batches: int) -> StageTrial:
    forward_s = median(step.forward_s for step in record.steps) / num_micro_batches
    backward_s = median(step.backward_s for step in record.steps) / num_micro_batches
    wall_s = sum(step.forward_s + step.backward_s for step in record.steps)
    return StageTrial(
        num_layers=num_layers,
        forward_s=forward_s,
        backward_s=backward_s,
        solo_forward_s=record.solo_forward_s,
        solo_backward_s=record.solo_backward_s,
        update_s=record.solo_update_s,
        transfer_s=record.transfer_s,
        processor_fraction=sum(step.cpu_s for step in record.steps) / wall_s,
    )
