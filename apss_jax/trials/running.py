"""Runs plans one after the other and says which was best."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from apss_jax.schema.errors import mistake
from apss_jax.schema.plan import Plan
from apss_jax.schema.trial import PlanTrial, Trial
from apss_jax.trials.assigning import assignments_of
from apss_jax.trials.assignment import Assignment, Sizes
from apss_jax.trials.launch import Devices, devices_at_hand, run_assignment
from apss_jax.trials.outcome import outcome_of

MOST_PROCESSES: Final = 16  # on processor cores, of which more can be asked for than there are
BUSY_FRACTION: Final = 0.5  # of the cores at work for others before a trial began
DISTURBED_FRACTION: Final = 0.85  # a pass whose processor worked less of its time was disturbed

TellFn = Callable[[str], None]
"""Tells a person what is going on."""


@dataclass(frozen=True)
class Wish:
    """How plans are to be tried."""

    sizes: Sizes
    steps: int
    emulate: bool
    knows_model: bool  # whether the sizes are those of the plan's own model


def try_plans(plans: Sequence[Plan], wish: Wish, *, file: str, tell: TellFn) -> Trial:
    """Returns measured and predicted times of plans; raises `InputError` for what cannot run.

    Every plan is checked before the first one runs.
    """
    devices = devices_at_hand()
    work = assignments_of(plans, wish.sizes, steps=wish.steps, emulate=wish.emulate, file=file)
    for plan, assignment in zip(plans, work, strict=True):
        _refuse_missing_devices(plan, assignment, devices, file)
    load_before = _load()
    tried = [
        _try(plan, assignment, devices, wish, tell)
        for plan, assignment in zip(plans, work, strict=True)
    ]
    return Trial(
        plans=tuple(tried),
        best=min(tried, key=lambda one: one.measured_step_s).rank,
        predicted_best=min(tried, key=lambda one: one.predicted_step_s).rank,
        emulated=wish.emulate,
        platform=devices.platform,
        cores=os.cpu_count(),
        load_before=load_before,
        load_after=_load(),
        assumptions=_assumptions(wish),
        warnings=_warnings(tried, load_before, devices, wish),
    )


def _try(
    plan: Plan, assignment: Assignment, devices: Devices, wish: Wish, tell: TellFn
) -> PlanTrial:
    shown = f"pp {plan.pipeline_parallel} dp {plan.data_parallel} tp {plan.tensor_parallel}"
    tell(f"Running plan {plan.rank} ({shown}): {assignment.num_stages} processes")
    records = run_assignment(assignment, devices)
    is_own = wish.knows_model and not wish.emulate and plan.cost is not None
    planned_s = plan.cost.step_time_s if is_own and plan.cost is not None else None
    return outcome_of(assignment, records, rank=plan.rank, planned_step_s=planned_s)


def _refuse_missing_devices(
    plan: Plan, assignment: Assignment, devices: Devices, file: str
) -> None:
    needed = assignment.num_stages * (1 if devices.are_cores else assignment.devices_per_stage)
    available = MOST_PROCESSES if devices.are_cores else devices.count
    if needed > available:
        rule = f"needs {needed} devices; this host has {available}"
        remedy = "Name a plan for this host's devices, or try it with --emulate on a CPU"
        raise mistake(f"plan {plan.rank}", "", rule, remedy, file=file)


def _assumptions(wish: Wish) -> tuple[str, ...]:
    if wish.emulate:
        return ("Stages sleep for what the plan says they take, on one scale; a tiny GPT trains.",)
    sizes = wish.sizes
    widths = f"hidden size {sizes.hidden_size}, {sizes.vocab_size} words, {sizes.seq_len} tokens"
    return (
        f"A GPT in FP32 trains with the plan's layers: {widths}.",
        "Tensor- and data-parallel ranks of a stage share a process; gradients are reduced after "
        "each micro-batch; optimizer states are not sharded.",
    )


def _warnings(
    tried: Sequence[PlanTrial], load_before: float | None, devices: Devices, wish: Wish
) -> tuple[str, ...]:
    found = []
    cores = os.cpu_count() or 1
    if load_before is not None and load_before > BUSY_FRACTION * cores:
        found.append(f"{load_before:.1f} processes were at work on {cores} cores before the trial")
    if devices.are_cores and not wish.emulate:
        most = max(len(one.stages) for one in tried)
        if most > cores:
            found.append(f"{most} stages shared {cores} cores: they slowed each other")
        found += [_disturbed(one) for one in tried if _least_processor(one) < DISTURBED_FRACTION]
    return tuple(found)


def _least_processor(tried: PlanTrial) -> float:
    return min(stage.processor_fraction for stage in tried.stages)


def _disturbed(tried: PlanTrial) -> str:
    share = _least_processor(tried)
    return (
        f"plan {tried.rank}: a stage had its processor for {share:.0%} of its time only; "
        "its times are not those of the machine alone"
    )


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
