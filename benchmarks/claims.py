"""Two claims of the original papers as experiments: a faster search, and unseen pairs of devices.

The search: what the policy proposes, cut with the network, against every legal layout with exact
cuts, on AMP's three problems; CPU time of the second search of each kind in one process.

The pairs: the order head trained without two whole pairs of device types, then tested on clusters
of those pairs alone, beside heads that were trained on as many problems of all mixes for as many
steps (imitation alone), and beside rules that propose as many orders. Every order gets its exact
cuts and 40 simulated steps; gaps are mean and 95th percentile in percent to the best of all methods
and a search of 20,000 steps.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from apss_jax.cost.compilation import keep_compiled_programs
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.portfolio import arranged, block_orders
from apss_jax.planning.clock import Clock
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.search import search_inputs
from apss_jax.policy.batched import Params, likely_orders, new_order_params
from apss_jax.policy.decode import NEVER
from apss_jax.policy.placements import placement_inputs
from apss_jax.schema.plan import Plan, SearchResult
from apss_jax.training.evaluation import HELD_OUT_SEED, gap_percent
from apss_jax.training.order_pool import OrderPoolPlan, build_order_pool, order_costs_s
from apss_jax.training.order_trainer import OrderTrainingConfig, new_order_state, order_step
from apss_jax.training.placements import MIXES, Mix, draw_placements

# Model, cluster, global batch, and the CPU-seconds that AMP's own program took.
AMP_PROBLEMS = (
    ("gpt2-345m-amp", "amp-homogeneous", 32, 326),
    ("gpt2-345m-amp", "amp-het-cluster", 32, 319),
    ("transgan-amp", "amp-het-model", 64, 157),
)
PAIRS: tuple[Mix, ...] = (("A100", "V100"), ("H100", "A100-80"))
SEEDS = (0, 1, 2)
POOL = OrderPoolPlan((((4, 8), 1600), ((9, 16), 700)), (16, 100, 4096), 32)
STEPS = 900
LABEL_STEPS = 1500  # simulated for the best order known of a problem
NUM_ORDERS = 16
TESTED = (((4, 8), 120), ((9, 16), 50))
LONG = 20_000

Orders = list[np.ndarray]


def searches() -> None:
    """Prints what both kinds of search find on AMP's problems, and their CPU time."""
    print("== policy and network against every layout with exact cuts; CPU-seconds")
    print("   cluster            policy  every  ratio   AMP  ratio  legal  first plan")
    for model, cluster, batch, amp_s in AMP_PROBLEMS:
        inputs = gather_inputs(model, cluster, global_batch=batch)
        ours, ours_s = second(partial(found_by, inputs, "dpsn", True))
        every, every_s = second(partial(found_by, inputs, "exact", False))
        gain = 1 - ours.plans[0].cost.step_time_s / every.plans[0].cost.step_time_s
        is_same = bare(ours.plans[0]) == bare(every.plans[0])
        print(
            f"   {cluster:18} {ours_s:6.2f} {every_s:6.2f} {every_s / ours_s:6.1f} {amp_s:5d} "
            f"{amp_s / ours_s:6.0f} {every.search.legal:6d}  "
            f"{'the same' if is_same else f'{100 * gain:.2f} % shorter'}",
            flush=True,
        )


def found_by(inputs: Inputs, solver: str, use_policy: bool) -> SearchResult:
    """Returns what a search finds."""
    return search_inputs(inputs, solver, {}, 5, Clock(), use_policy=use_policy)


def second(search: Callable[[], SearchResult]) -> tuple[SearchResult, float]:
    """Returns what a search finds, and the CPU time of its second run: the first one compiles."""
    search()
    start_s = time.process_time()
    return search(), time.process_time() - start_s


def bare(plan: Plan) -> dict[str, Any]:
    """Returns a plan without the words about it, which depend on what else was looked at."""
    return plan.model_dump(exclude={"explanation"})


@dataclass(frozen=True, eq=False)
class Tested:
    """Clusters of the pairs, and the least step that a long search finds on each."""

    problems: list[JointInstance]
    long_s: np.ndarray


def tested(stages: tuple[int, int], count: int) -> Tested:
    """Returns problems of the pairs alone that no training saw and that something fits."""
    drawn = draw_placements(count, HELD_OUT_SEED, stages=stages, mixes=PAIRS)
    problems = [placement.instance for placement in drawn]
    found = [arranged(problem, budget=LONG) for problem in problems]
    kept = [(each, best) for each, best in zip(problems, found, strict=True) if best is not None]
    return Tested([each for each, _ in kept], np.array([best.objective_s for _, best in kept]))


def mixes_without_pairs() -> tuple[Mix, ...]:
    """Returns the mixes of training in which no pair stands, in larger ones neither."""
    return tuple(mix for mix in MIXES if not any(set(pair) <= set(mix) for pair in PAIRS))


def trained(mixes: tuple[Mix, ...], seed: int) -> tuple[Params, float]:
    """Returns an order head after its steps on clusters of some mixes, and the CPU time of all."""
    start_s = time.process_time()
    config = OrderTrainingConfig(
        steps=STEPS, objective="imitation", pools=(POOL,), shares=(1.0,), mixes=mixes
    )
    state = new_order_state(config, seed)
    state.pools = [build_order_pool(POOL, seed + 1, mixes, budget=LABEL_STEPS)]
    while state.step < config.steps:
        order_step(config, seed, state)
    return state.params, time.process_time() - start_s


def orders_of(params: Params, some: Tested) -> Orders:
    """Returns the order of likeliest steps of each problem, then those of a beam."""
    inputs, _ = placement_inputs(some.problems)
    config = OrderTrainingConfig().network
    greedy, _ = likely_orders(config, params, inputs, 1)
    beam, likelihood = likely_orders(config, params, inputs, NUM_ORDERS - 1)
    beam = np.where((likelihood > 0.5 * NEVER)[..., None], beam, greedy)
    found = np.concatenate([greedy, beam], axis=1).astype(np.int64)
    return [own[:, : each.num_stages] for own, each in zip(found, some.problems, strict=True)]


def blocks_of(seed: int, some: Tested) -> Orders:
    """Returns orders with each type together, drawn from all of them."""
    rng = np.random.default_rng(seed)
    found = [block_orders(each) for each in some.problems]
    return [own[rng.integers(len(own), size=NUM_ORDERS)] for own in found]


def shuffled_of(seed: int, some: Tested) -> Orders:
    """Returns orders drawn from all."""
    rng = np.random.default_rng(seed)
    devices = [np.repeat(np.arange(each.num_types), each.counts) for each in some.problems]
    return [
        np.stack([rng.permutation(own)[: each.num_stages] for _ in range(NUM_ORDERS)])
        for own, each in zip(devices, some.problems, strict=True)
    ]


def steps_s(some: Tested, orders: Orders) -> np.ndarray:
    """Returns the step with each order of each problem; inf where nothing fits."""
    pairs = zip(some.problems, orders, strict=True)
    return np.stack([order_costs_s(each, own) for each, own in pairs])


def pairs() -> None:
    """Prints the gaps on unseen pairs, a row for each method and seed."""
    problems = {stages: tested(stages, count) for stages, count in TESTED}
    ways: dict[str, Callable[[Tested], Orders]] = {}
    for seed in SEEDS:
        for name, mixes in (("without the pairs", mixes_without_pairs()), ("all mixes", MIXES)):
            params, spent_s = trained(mixes, seed)
            note = f"head, {name}, seed {seed}, {spent_s:.0f} CPU-s"
            ways[note] = partial(orders_of, params)
        untrained = new_order_params(OrderTrainingConfig().network, seed)
        ways[f"head, untrained, seed {seed}"] = partial(orders_of, untrained)
        for name, rule in (("types together", blocks_of), ("any order", shuffled_of)):
            ways[f"{name}, seed {seed}"] = partial(rule, seed)
    for stages, some in problems.items():
        print(f"== {len(some.problems)} clusters of unseen pairs, {stages[0]}-{stages[1]} stages")
        print(f"   {'':44} first order         best of {NUM_ORDERS}")
        found = {name: steps_s(some, way(some)) for name, way in ways.items()}
        least_s = np.minimum(some.long_s, np.min([own.min(axis=1) for own in found.values()], 0))
        for name, own in sorted(found.items()):
            cells = [shown(own[:, 0], least_s), shown(own.min(axis=1), least_s)]
            print(f"   {name:44} {cells[0]:18}  {cells[1]}", flush=True)


def shown(found_s: np.ndarray, least_s: np.ndarray) -> str:
    """Returns the gap where something fits, and the share of problems where nothing does."""
    fits = np.isfinite(found_s)
    mean, high = gap_percent(found_s[fits], least_s[fits])
    none = f" ({100 * (1 - fits.mean()):.0f} % do not fit)" if not fits.all() else ""
    return f"{mean:6.2f} / {high:6.2f}{none}"


def main() -> None:
    """Prints all tables."""
    keep_compiled_programs()
    searches()
    pairs()


if __name__ == "__main__":
    main()
