"""What the reach within a limit is worth to the network: trained with it and without, three seeds.

All learn by imitation on the same problems, for as many steps, from random weights. *Without
reaches* the network is not told where pieces can end within each limit, and places are seen
relative to the middle of their window; *without the limit* times are relative to an even share of
the model instead of the least limit, besides. Windows stay where they are: the decoder needs them.
Gaps are to the exact solution of the closed form, mean and 95th percentile in percent.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from apss_jax.cost.compilation import keep_compiled_programs
from apss_jax.policy.chains import Chain
from apss_jax.policy.features import BOUNDARY, TIME_END, TIME_START
from apss_jax.policy.weights import Policy
from apss_jax.training.evaluation import gap_percent, held_out, network_costs_s
from apss_jax.training.pool import Pool, PoolPlan, build_pool
from apss_jax.training.trainer import TrainingConfig, new_state, train_step

SEEDS = (0, 1, 2)
PLAN = PoolPlan((("closed", 800), ("original", 800)), (16, 24, 8), 64)
STEPS = 320
FAMILIES = ("closed", "original")
_WIDE = 10_000  # places: more than any model has


def without_reaches(chain: Chain) -> Chain:
    """Returns problems that say of every piece that it can end anywhere."""
    middle = (chain.origin + chain.until.shape[-1] // 2)[:, None]
    bounds = np.concatenate([middle - _WIDE, middle + _WIDE], axis=1)[:, None]
    reach = np.broadcast_to(bounds, chain.reach.shape).astype(np.int32)
    return chain._replace(reach=reach, reach_times=np.zeros_like(chain.reach_times))


def without_limit(chain: Chain) -> Chain:
    """Returns the same, times relative to an even share where layers could be cut anywhere."""
    each = np.where(chain.time > 0, 1.0 / np.maximum(chain.time, 1e-9), 0.0)
    even = (1.0 / np.maximum(each.sum(axis=1), 1e-9)).astype(np.float32)
    windows = chain.windows.copy()
    windows[:, :, [TIME_END, TIME_START, BOUNDARY]] /= even[:, None, None, None]
    return without_reaches(chain)._replace(
        windows=windows,
        time=chain.time / even[:, None],
        gradient=chain.gradient / even[:, None],
        gradient_limit=chain.gradient_limit / even,
        memory_slowdown=np.ones_like(chain.memory_slowdown),
    )


VIEWS: dict[str, Callable[[Chain], Chain]] = {
    "all features": lambda chain: chain,
    "without reaches": without_reaches,
    "without the limit": without_limit,
}


def trained(pool: Pool, view: Callable[[Chain], Chain], seed: int) -> tuple[Policy, float]:
    """Returns the network after its steps on what it is shown, and the CPU time they took."""
    config = TrainingConfig(
        seed=seed, steps=STEPS, objective="imitation", pools=(PLAN,), shares=(1.0,)
    )
    state = new_state(replace(config, pools=(), shares=()))
    state.pools = [replace(pool, chains=view(pool.chains))]
    train_step(config, state)  # the first step compiles
    start_s = time.process_time()
    while state.step < config.steps:
        train_step(config, state)
    network = Policy(config.network, state.params, config.orders.network, state.orders.params)
    return network, time.process_time() - start_s


def main() -> None:
    """Prints a row for each view and seed."""
    keep_compiled_programs()
    pool = build_pool(PLAN, 1, with_labels=True)
    problems = {family: held_out(family, 300) for family in FAMILIES}
    print("   greedy              seed     closed form         original paper     CPU s")
    for name, view in VIEWS.items():
        seen = {key: replace(some, chains=view(some.chains)) for key, some in problems.items()}
        for seed in SEEDS:
            policy, spent_s = trained(pool, view, seed)
            cells = []
            for some in seen.values():
                found_s = network_costs_s(policy, some, samples=1)[:, 0]
                mean, high = gap_percent(found_s, some.exact_s)
                cells.append(f"{mean:7.3f} / {high:7.3f}")
            print(f"   {name:18} {seed:5d}   {'   '.join(cells)}   {spent_s:5.1f}", flush=True)


if __name__ == "__main__":
    main()
