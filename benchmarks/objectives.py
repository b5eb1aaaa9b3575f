"""Training objectives compared: the same problems, the same CPU time, three seeds each.

All begin from random weights. Imitation sees solvers' answers; the others begin from rules (equal
layers, parameters, times) and what the network itself finds. Gaps are to the exact solution of the
closed form, in percent: greedy, then the best of 16; under the simulator they can be below zero.
"""

import copy
import time
from dataclasses import replace

from apss_jax.cost.compilation import keep_compiled_programs
from apss_jax.policy.weights import Policy
from apss_jax.training.evaluation import HeldOut, held_out, quick_figures
from apss_jax.training.pool import Pool, PoolPlan, build_pool
from apss_jax.training.trainer import TrainingConfig, TrainingState, new_state, train_step

SEEDS = (0, 1, 2)
PLAN = PoolPlan((("closed", 800), ("simulated", 800)), (16, 24, 8), 64)
# Steps that take about the same CPU time: imitation scores nothing and draws nothing.
STEPS = {"contrastive": 200, "info_nce": 200, "reinforce": 200, "sign": 200, "imitation": 320}
EMPTY = TrainingConfig(pools=(), shares=())


def trained(objective: str, seed: int, pool: Pool) -> tuple[Policy, float]:
    """Returns the network after the steps of an objective, and the CPU time they took."""
    config = replace(
        EMPTY,
        seed=seed,
        steps=STEPS[objective],
        objective=objective,
        warm_start=0.0,
        pools=(PLAN,),
        shares=(1.0,),
    )
    bare: TrainingState = new_state(replace(config, pools=(), shares=()))
    own = copy.copy(pool)
    own.elite_ends, own.elite_s = pool.elite_ends.copy(), pool.elite_s.copy()
    bare.pools = [own]
    train_step(config, bare)  # the first step compiles
    start_s = time.process_time()
    while bare.step < config.steps:
        train_step(config, bare)
    network = Policy(config.network, bare.params, config.orders.network, bare.orders.params)
    return network, time.process_time() - start_s


def main() -> None:
    """Prints one row for each objective and seed."""
    keep_compiled_programs()
    problems: dict[str, HeldOut] = {name: held_out(name, 200) for name in ("closed", "simulated")}
    pools = {labels: build_pool(PLAN, 1, with_labels=labels) for labels in (False, True)}
    print("   objective     seed   closed form: greedy / of 16   simulated: greedy / of 16   CPU s")
    for objective in STEPS:
        for seed in SEEDS:
            policy, spent_s = trained(objective, seed, pools[objective == "imitation"])
            found = list(quick_figures(policy, problems).values())
            print(
                f"   {objective:12s} {seed:5d}   {found[0]:8.3f} / {found[1]:8.3f}"
                f"          {found[2]:8.3f} / {found[3]:8.3f}        {spent_s:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
