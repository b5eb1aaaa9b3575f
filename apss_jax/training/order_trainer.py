"""Training of the order head: the same objectives over sets of orders."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import jax
import numpy as np
import optax
from jaxtyping import Float, Int

from apss_jax.cost.batched import QUICKLY
from apss_jax.policy.batched import Params, likely_orders, new_order_params, order_log_likelihood
from apss_jax.policy.decode import NEVER
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.placements import LONGEST_DETOUR, PlacementInput
from apss_jax.training.losses import LOSSES, ScoredSet
from apss_jax.training.order_pool import (
    OrderPool,
    OrderPoolPlan,
    build_order_pool,
    padded_orders,
    usual_orders,
)
from apss_jax.training.placements import MIXES, Mix
from apss_jax.training.sharding import shared_out
from apss_jax.training.steps import Report, clipped_adam, moved, planned

ORDER_POOLS: Final = (
    OrderPoolPlan((((4, 8), 6000), ((9, 16), 8000)), (16, 100, 4096), 32),
    OrderPoolPlan((((17, 32), 1500),), (32, 160, 16384), 16),
)


@dataclass(frozen=True)
class OrderTrainingConfig:
    """All that decides what the order head becomes."""

    steps: int = 10000
    objective: str = "info_nce"
    warm_start: float = 0.75
    learning_rate: float = 2e-3
    samples: int = 12
    network: OrderConfig = field(default_factory=OrderConfig)
    pools: tuple[OrderPoolPlan, ...] = ORDER_POOLS
    shares: tuple[float, ...] = (0.75, 0.25)
    mixes: tuple[Mix, ...] = MIXES
    softness: tuple[float, float] = (0.03, 0.004)
    hide_detours: float = 0.05
    """How often a problem is shown without detours, as one whose lattice is too large."""


@dataclass(eq=False)
class OrderState:
    """What the training of the order head continues from."""

    params: Params
    optimizer: Any
    step: int
    pools: list[OrderPool]
    """Drawn before the first step that needs them."""


def new_order_state(config: OrderTrainingConfig, seed: int) -> OrderState:
    """Returns the state before the first step."""
    params = new_order_params(config.network, seed)
    return OrderState(params, _optimizer(config).init(params), 0, [])


def draw_order_pools(config: OrderTrainingConfig, seed: int, state: OrderState) -> None:
    """Draws the problems, unless they are there."""
    if not state.pools:
        state.pools = [build_order_pool(plan, seed + 1, config.mixes) for plan in config.pools]


def order_step(config: OrderTrainingConfig, seed: int, state: OrderState) -> Report:
    """Runs one step, changing the state, and returns its figures."""
    draw_order_pools(config, seed, state)
    rng = np.random.default_rng((seed, 1, state.step))
    sizes = [(len(pool), plan.batch) for pool, plan in zip(state.pools, config.pools, strict=True)]
    plan = planned(config, state.step, sizes, rng)
    pool, rows = state.pools[plan.pool], plan.rows
    inputs = pool.input(rows)
    inputs.detours[rng.random(len(rows)) < config.hide_detours] = LONGEST_DETOUR
    if plan.drawn:
        orders, gaps = _scored_set(config, state.params, pool, rows, inputs, rng)
    else:
        orders, gaps = pool.elite_orders[rows][:, None], np.zeros((len(rows), 1))
    args = (shared_out(inputs), shared_out(orders), shared_out(gaps.astype(np.float32)))
    loss, state.params, state.optimizer = _update(
        *(config, plan.objective, plan.drawn),
        *(state.params, state.optimizer, *args, plan.softness),
    )
    state.step += 1
    return {**plan.report(loss, gaps), "objective": f"orders_{plan.objective}"}


def _scored_set(
    config: OrderTrainingConfig,
    params: Params,
    pool: OrderPool,
    rows: Int[np.ndarray, "_"],
    inputs: PlacementInput,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "_ samples stages"], Float[np.ndarray, "_ samples"]]:
    """Returns what the network drew, the elite and orders by type, with their gaps."""
    key = jax.random.key(int(rng.integers(1 << 31)))
    args = (config.network, params, shared_out(inputs), config.samples, key)
    drawn, likelihood = map(np.asarray, likely_orders(*args))
    stages = pool.elite_orders.shape[1]
    usual = np.stack(
        [padded_orders(list(usual_orders(pool.instances[row], 2, rng)), stages) for row in rows]
    )
    elites = pool.elite_orders[rows][:, None]
    is_order = likelihood > 0.5 * NEVER
    orders = np.concatenate([np.where(is_order[..., None], drawn, elites), elites, usual], axis=1)
    gaps = pool.costs_s(rows, orders) / pool.elite_s[rows][:, None] - 1
    gaps[:, : config.samples][~is_order] = np.inf
    return orders, gaps


def _optimizer(config: OrderTrainingConfig) -> optax.GradientTransformation:
    return clipped_adam(config.learning_rate, config.steps, warm_up=50, end=1e-5)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4), compiler_options=QUICKLY)
def _update(
    config: OrderTrainingConfig,
    objective: str,
    drawn: int,
    params: Params,
    optimizer: Any,
    inputs: PlacementInput,
    orders: Int[jax.Array, "batch samples stages"],
    gaps: Float[jax.Array, "batch samples"],
    softness: Float[jax.Array, ""],
) -> tuple[jax.Array, Params, Any]:
    """Returns the loss, and weights and optimizer after one step."""

    def loss_of(params: Params, problem: PlacementInput, orders: Any, gap: Any) -> jax.Array:
        likelihood = order_log_likelihood(config.network, params, problem, orders)
        scored = ScoredSet.of(likelihood, gap, problem.num_stages, softness)
        return LOSSES[objective](scored, drawn)

    return moved(_optimizer(config), loss_of, params, optimizer, (inputs, orders, gaps))
