"""The one place of `jit` and `vmap` in the cost model."""

from __future__ import annotations

from functools import partial
from typing import Final

import jax
from jaxtyping import Float

from apss_jax.cost.memory import StageMemory
from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.simulate import StageTimes
from apss_jax.cost.step import (
    Breakdown,
    StepCost,
    closed_form_cost,
    closed_form_s,
    step_cost,
    strategy_times,
)
from apss_jax.cost.traced import KeptProgram
from apss_jax.problem import Problem
from apss_jax.strategy import Strategy

# People wait for the first search on a machine. XLA's older emitters, in one piece and one level
# down, compile in half the CPU time; the loop over slots then takes a third longer, closed forms a
# tenth less (benchmarks/cost.py).
QUICKLY: Final = {
    "xla_backend_optimization_level": 1,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@partial(jax.jit, compiler_options=QUICKLY)
def step_costs(problem: Problem, strategies: Strategy, table: ScheduleTable) -> StepCost:
    """Returns the cost of many strategies (leading axis) that share one schedule table."""
    return jax.vmap(step_cost, in_axes=(None, 0, None))(problem, strategies, table)


kept_step_costs: Final = KeptProgram(
    step_costs, QUICKLY, (Problem, Strategy, ScheduleTable, StepCost, Breakdown, StageMemory)
)
"""`step_costs`, traced once per machine where programs are kept."""


@partial(jax.jit, compiler_options=QUICKLY)
def closed_form_costs(problem: Problem, strategies: Strategy) -> StepCost:
    """Returns the closed-form cost of many strategies (leading axis), memory included."""
    return jax.vmap(closed_form_cost, in_axes=(None, 0))(problem, strategies)


@partial(jax.jit, compiler_options=QUICKLY)
def closed_forms_s(problem: Problem, strategies: Strategy) -> Float[jax.Array, " batch"]:
    """Returns the closed-form step time of many strategies (leading axis)."""
    return jax.vmap(closed_form_s, in_axes=(None, 0))(problem, strategies)


@partial(jax.jit, compiler_options=QUICKLY)
def op_times(problem: Problem, strategies: Strategy) -> StageTimes:
    """Returns what the ops of many strategies take (leading axis)."""
    return jax.vmap(strategy_times, in_axes=(None, 0))(problem, strategies)
