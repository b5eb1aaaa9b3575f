"""The one place of `jit` and `vmap` in the cost model."""

from __future__ import annotations

from functools import partial
from typing import Final

import jax
from jaxtyping import Float

from apss_jax.cost.op_table import ScheduleTable
from apss_jax.cost.step import StepCost, closed_form_s, step_cost
from apss_jax.problem import Problem
from apss_jax.strategy import Strategy

# People wait for the first search on a machine. One level down compiles a quarter faster and the
# loops over slots run no slower (benchmarks/simulation.py).
QUICKLY: Final = {"xla_backend_optimization_level": 1}


@partial(jax.jit, compiler_options=QUICKLY)
def step_costs(problem: Problem, strategies: Strategy, table: ScheduleTable) -> StepCost:
    """Returns the cost of many strategies (leading axis) that share one schedule table."""
    return jax.vmap(step_cost, in_axes=(None, 0, None))(problem, strategies, table)


@partial(jax.jit, compiler_options=QUICKLY)
def closed_forms_s(problem: Problem, strategies: Strategy) -> Float[jax.Array, " batch"]:
    """Returns the closed-form step time of many strategies (leading axis)."""
    return jax.vmap(closed_form_s, in_axes=(None, 0))(problem, strategies)
