"""Training: draw partitions, score them, move the weights; the same again from the same seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import jax
import numpy as np
import optax
from jaxtyping import Float, Int

from apss_jax.cost.batched import QUICKLY
from apss_jax.policy.batched import Params, new_params, proposals, scored_ways
from apss_jax.policy.chains import Chain
from apss_jax.policy.decode import log_likelihood, places_of
from apss_jax.policy.network import NetworkConfig
from apss_jax.training.losses import LOSSES, ScoredSet
from apss_jax.training.objective import costs_of_all
from apss_jax.training.order_trainer import (
    OrderState,
    OrderTrainingConfig,
    new_order_state,
    order_step,
)
from apss_jax.training.pool import Pool, PoolPlan, build_pool
from apss_jax.training.sharding import shared_out
from apss_jax.training.steps import Report, clipped_adam, mean_gap_percent, moved, planned

_USUAL: Final = (
    *(("original", 5000), ("closed", 5000), ("closed_long", 1000), ("tight", 600)),
    *(("simulated", 9000), ("simulated_long", 1400), ("interleaved_small", 1500)),
)
_FEW: Final = (("original_few", 2500), ("closed_few", 600), ("simulated_few", 900))
_WIDE: Final = (("interleaved", 2400), ("closed_wide", 1100), ("simulated_wide", 900))
_WIDEST: Final = (("closed_widest", 900), ("simulated_widest", 600))
POOLS: Final = (
    PoolPlan(_USUAL, (16, 24, 8), 64),
    PoolPlan(_FEW, (4, 32, 32), 64),
    PoolPlan(_WIDE, (32, 32, 8), 24),
    PoolPlan(_WIDEST, (64, 24, 6), 16),
)
# How often a step takes each pool.
_SHARES: Final = (0.62, 0.14, 0.16, 0.08)


@dataclass(frozen=True)
class TrainingConfig:
    """All that decides what a training run gives."""

    seed: int = 0
    steps: int = 8000
    objective: str = "contrastive"
    warm_start: float = 0.7
    """Share of the steps that imitate the best solutions known."""
    learning_rate: float = 2e-3
    samples: int = 12
    """Partitions that the network draws for each problem of a step."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    pools: tuple[PoolPlan, ...] = POOLS
    shares: tuple[float, ...] = _SHARES
    softness: tuple[float, float] = (0.02, 0.004)
    forget_reference: float = 0.5
    """Share of simulated problems that are shown without the exact solution."""
    orders: OrderTrainingConfig = field(default_factory=OrderTrainingConfig)
    """Of the order head, which is trained after the cuts."""

    @property
    def all_steps(self) -> int:
        """The steps of both heads."""
        return self.steps + self.orders.steps


@dataclass(eq=False)
class TrainingState:
    """What a run continues from."""

    params: Params
    optimizer: Any
    step: int
    pools: list[Pool]
    orders: OrderState

    @property
    def all_steps(self) -> int:
        """The steps that were run, of both heads."""
        return self.step + self.orders.step


def new_state(config: TrainingConfig) -> TrainingState:
    """Returns the state before the first step."""
    pools = [
        build_pool(plan, config.seed + 1, with_labels=config.warm_start > 0)
        for plan in config.pools
    ]
    params = new_params(config.network, config.seed)
    orders = new_order_state(config.orders, config.seed)
    return TrainingState(params, _optimizer(config).init(params), 0, pools, orders)


def train(config: TrainingConfig, state: TrainingState) -> Iterator[Report]:
    """Runs the steps that are left, changing the state; yields the figures of each."""
    while state.step < config.steps:
        yield train_step(config, state)
    while state.orders.step < config.orders.steps:
        yield {
            **order_step(config.orders, config.seed, state.orders),
            "step": state.all_steps,
        }


def train_step(config: TrainingConfig, state: TrainingState) -> Report:
    """Runs one step and returns its figures."""
    rng = np.random.default_rng((config.seed, state.step))
    sizes = [(len(pool), plan.batch) for pool, plan in zip(state.pools, config.pools, strict=True)]
    plan = planned(config, state.step, sizes, rng)
    pool, rows = state.pools[plan.pool], plan.rows
    chain = _shown(pool.chain(rows), config.forget_reference, rng)
    if plan.drawn:
        ends, gaps = _scored_set(config, state.params, pool, rows, chain, rng)
    else:
        ends, gaps = pool.elite_ends[rows][:, None], np.zeros((len(rows), 1))
    args = (shared_out(chain), shared_out(ends), shared_out(gaps.astype(np.float32)))
    compiled_for = replace(config, seed=0, pools=(), shares=())
    loss, state.params, state.optimizer = _update(
        *(compiled_for, plan.objective, plan.drawn),
        *(state.params, state.optimizer, *args, plan.softness),
    )
    state.step += 1
    return {
        **plan.report(loss, gaps),
        "step": state.step,
        "likeliest_gap_percent": mean_gap_percent(gaps[:, : min(plan.drawn, 1)]),
    }


def _shown(chain: Chain, forgotten: float, rng: np.random.Generator) -> Chain:
    """Returns the problems, some of them without the solution that is given."""
    hidden = rng.random(len(chain.reference)) < forgotten
    return chain._replace(reference=np.where(hidden[:, None], -1, chain.reference))


def _scored_set(
    config: TrainingConfig,
    params: Params,
    pool: Pool,
    rows: Int[np.ndarray, "_"],
    chain: Chain,
    rng: np.random.Generator,
) -> tuple[Int[np.ndarray, "_ samples stages"], Float[np.ndarray, "_ samples"]]:
    """Returns what the network drew, the elites, their neighbours and rules, with their gaps."""
    keys = jax.random.split(jax.random.key(int(rng.integers(1 << 31))), len(rows))
    drawn = proposals(config.network, params, shared_out(chain), keys, config.samples - 1)
    elites = pool.elite_ends[rows]
    near = neighbours(elites, chain.num_pieces, 6, rng)
    ends = np.concatenate(
        [np.asarray(drawn), elites[:, None], near, pool.heuristics[rows][:, :2]], axis=1
    )
    costs_s = costs_of_all([pool.objectives[row] for row in rows], ends)
    pool.offer(rows, ends, costs_s)
    return ends, costs_s / pool.elite_s[rows][:, None] - 1


def neighbours(
    ends: Int[np.ndarray, "batch stages"],
    num_pieces: Int[np.ndarray, "batch"],
    count: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, "batch _ stages"]:
    """Returns solutions beside the given ones: a block of cuts moved by one layer each."""
    shape = (len(ends), count)
    cuts = np.maximum(num_pieces - 1, 1)[:, None]
    first = (rng.random(shape) * cuts).astype(int)
    last = first + (rng.random(shape) < 0.5) * (rng.random(shape) * (cuts - first)).astype(int)
    index = np.arange(ends.shape[1])
    is_moved = (index >= first[..., None]) & (index <= last[..., None])
    is_moved &= index < num_pieces[:, None, None] - 1
    step = rng.choice([-1, 1], shape)[..., None]
    moved = ends[:, None] + is_moved * step
    has_all = np.diff(moved, axis=2, prepend=0) > 0
    is_legal = (has_all | (index >= num_pieces[:, None, None])).all(axis=2)
    return np.where(is_legal[..., None], moved, ends[:, None]).astype(ends.dtype)


def _optimizer(config: TrainingConfig) -> optax.GradientTransformation:
    peak = config.learning_rate
    return clipped_adam(peak, config.steps, warm_up=200, end=0.02 * peak)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(3, 4), compiler_options=QUICKLY)
def _update(
    config: TrainingConfig,
    objective: str,
    drawn: int,
    params: Params,
    optimizer: Any,
    chains: Chain,
    ends: Int[jax.Array, "batch samples stages"],
    gaps: Float[jax.Array, "batch samples"],
    softness: Float[jax.Array, ""],
) -> tuple[jax.Array, Params, Any]:
    """Returns the loss, and weights and optimizer after one step."""

    def loss_of(params: Params, chain: Chain, ends: jax.Array, gap: jax.Array) -> jax.Array:
        likelihood = log_likelihood(
            scored_ways(config.network, params, chain), places_of(chain, ends)
        )
        scored = ScoredSet.of(likelihood, gap, chain.num_pieces - 1, softness)
        return LOSSES[objective](scored, drawn)

    return moved(_optimizer(config), loss_of, params, optimizer, (chains, ends, gaps))
