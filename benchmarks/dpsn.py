"""The network against solvers on frozen problems: gaps to the best known, and CPU time.

Problems come from `apss_jax.training` with a seed that training never uses. Gaps are mean and 95th
percentile in percent. Under the closed form the best known is the exact optimum; under the
simulator it is the best of all methods here, each searched on for long. `--quick` takes a fifth of
the problems. Times are the process's own CPU time; set XLA_FLAGS=--xla_cpu_multi_thread_eigen=false
to keep them on one core.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import jax
import numpy as np

import apss_jax
from apss_jax.cost.compilation import keep_compiled_programs
from apss_jax.partitioning.balanced import balanced_cuts, uniform_cuts
from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.pipeline import offsets_of, simulated_step_s
from apss_jax.partitioning.portfolio import arranged, block_orders, scored_orders
from apss_jax.partitioning.refinement import improved
from apss_jax.policy.batched import decoded, likely_orders
from apss_jax.policy.chains import chains_of
from apss_jax.policy.joint import proposed
from apss_jax.policy.placements import placement_inputs
from apss_jax.policy.weights import shipped_policy
from apss_jax.training.evaluation import (
    HELD_OUT_SEED,
    HeldOut,
    best_of,
    gap_percent,
    held_out,
    refined,
    varied,
)
from apss_jax.training.instances import Family, draw
from apss_jax.training.placements import draw_placements

REFINEMENT = 60  # simulated steps of one search
LONG = 1000
LONG_ORDERS = 20_000
ORDERS_SEED = 41_000  # problems by which no setting was chosen
SEEDS = (0, 1, 2)

Ends = np.ndarray
Rows = dict[str, Ends]


def shown(name: str, gap: tuple[float, float], note: str = "") -> None:
    """Prints one row."""
    print(f"   {name:44s} {gap[0]:8.3f} / {gap[1]:7.3f}   {note}", flush=True)


def network(problems: HeldOut, samples: int, seed: int = 0) -> Ends:
    """Returns where pieces end in the network's solutions."""
    policy = shipped_policy()
    return decoded(policy.config, policy.params, problems.chains, samples=samples, seed=seed)


def originals(count: int) -> None:
    """Prints the gaps on problems as the original paper draws them."""
    print("== the original paper's distribution: 30 layers, costs uniform from 0 to 1")
    goals = {2: "0.01; 0.00", 4: "0.10; 0.01", 8: "0.8; 0.1", 16: "2.0; 0.5"}
    for stages, goal in goals.items():
        rng = np.random.default_rng((HELD_OUT_SEED, stages))
        layers, boundaries = rng.random((count, 30)), rng.random((count, 29, stages - 1))
        scores = {}
        for name, solver, samples in (
            *(("exact", "exact", 1), ("uniform", "uniform", 1)),
            *(("greedy", "dpsn", 1), ("best of 100", "dpsn", 100)),
        ):
            cuts = apss_jax.partition(
                layers, boundaries, num_stages=stages, solver=solver, samples=samples
            )
            scores[name] = _original_objective(layers, boundaries, cuts)
        for name in ("uniform", "greedy", "best of 100"):
            note = f"goal {goal}" if name == "greedy" else ""
            shown(f"{stages} stages, {name}", gap_percent(scores[name], scores["exact"]), note)


def _original_objective(layers: np.ndarray, boundaries: np.ndarray, cuts: Ends) -> np.ndarray:
    rows = np.arange(len(layers))
    before = np.pad(np.cumsum(layers, axis=1), ((0, 0), (1, 0)))
    ends = np.pad(cuts + 1, ((0, 0), (1, 1)))
    ends[:, -1] = layers.shape[1]
    slowest = np.diff(before[rows[:, None], ends], axis=1).max(axis=1)
    return slowest + boundaries[rows[:, None], cuts, np.arange(cuts.shape[1])].sum(axis=1)


def rules(problems: HeldOut) -> Rows:
    """Returns what equal layers, equal parameters and equal times give."""
    width = problems.exact_ends.shape[1]
    found: dict[str, list[np.ndarray]] = {"uniform": [], "equal parameters": []}
    for one in problems.instances:
        for name, cuts in (
            ("uniform", uniform_cuts(one.num_layers, one.num_pieces)),
            ("equal parameters", balanced_cuts(one.state_bytes, one.num_pieces)),
        ):
            ends = np.append(cuts + 1, one.num_layers)
            found[name].append(np.pad(ends, (0, width - len(ends)), mode="edge"))
    return {name: np.stack(rows) for name, rows in found.items()}


def closed_form(family: str, count: int, goal: str) -> None:
    """Prints the gaps of one family under the closed form."""
    problems = held_out(family, count)
    print(f"== closed form, {family}: {len(problems.instances)} problems; goal {goal}")
    ends = network(problems, 16)
    best = best_of(problems, ends)
    rows = rules(problems) | {
        "exact min-max alone": least_slowest(problems),
        "network, greedy": ends[:, 0],
        "network, best of 16": best,
        "network, greedy + refinement": refined(problems, ends[:, 0], 0),
        "network, best of 16 + refinement": refined(problems, best, 0),
    }
    _print_rows(problems, rows, problems.exact_s)


def least_slowest(problems: HeldOut) -> Ends:
    """Returns the exact solution if nothing but the slowest piece counted."""
    found = solve_exact_many(
        [replace(one.closed_form(), num_micro_batches=1 << 20) for one in problems.instances]
    )
    width = problems.exact_ends.shape[1]
    rows = [
        np.append(best.cuts + 1, one.num_layers)
        for best, one in zip(found, problems.instances, strict=True)
        if best is not None
    ]
    return np.stack([np.pad(row, (0, width - len(row)), mode="edge") for row in rows])


def _print_rows(problems: HeldOut, rows: Rows, best_s: np.ndarray) -> None:
    for name, ends in rows.items():
        found_s = problems.costs_s(ends[:, None])[:, 0]
        fits = np.isfinite(found_s)
        share = 100 * (1 - fits.mean())
        note = f"{share:.1f} % do not fit" if share else ""
        shown(name, gap_percent(found_s[fits], best_s[fits]), note)


def simulated(family: str, count: int, goal: str) -> None:
    """Prints the gaps of one family under the simulator, for three seeds."""
    problems = held_out(family, count)
    blind = held_out(family, count, with_reference=False)
    print(f"== simulator, {family}: {len(problems.instances)} problems; goal {goal}")
    rows = {"exact closed form": problems.exact_ends, "exact min-max": least_slowest(problems)}
    rows["exact + refinement"] = refined(problems, problems.exact_ends, REFINEMENT)
    for seed in SEEDS:
        ends, unaided = network(problems, 16, seed), network(blind, 16, seed)
        random = best_of(problems, varied(problems, 16, np.random.default_rng(seed)))
        if seed == SEEDS[0]:
            rows["network, greedy"] = ends[:, 0]
            rows["network without the exact solution, greedy"] = unaided[:, 0]
        for name, best in (
            ("network, best of 16", best_of(problems, ends)),
            ("network without the exact solution, best of 16", best_of(problems, unaided)),
            ("exact + 15 variations", random),
        ):
            rows[f"{name}, seed {seed}"] = best
            rows[f"{name} + refinement, seed {seed}"] = refined(problems, best, REFINEMENT)
    _print_rows(problems, rows, best_known(problems, rows))


def best_known(problems: HeldOut, rows: Rows) -> np.ndarray:
    """Returns the least that any method finds, the best of them searched on for long."""
    every = np.stack(list(rows.values()), axis=1)
    costs_s = problems.costs_s(every)
    least_s, rows_of = costs_s.min(axis=1), np.arange(len(every))
    for start in np.argsort(costs_s, axis=1)[:, :2].T:
        longer = refined(problems, every[rows_of, start], LONG)
        least_s = np.minimum(least_s, problems.costs_s(longer[:, None])[:, 0])
    return least_s


def joint(stages: tuple[int, int], count: int, goal: str) -> None:
    """Prints the gaps where the order of devices is open, against a long search."""
    drawn = list(draw_placements(count, ORDERS_SEED, stages=stages))
    best = [arranged(each.instance, budget=LONG_ORDERS) for each in drawn]
    kept = [(each, found) for each, found in zip(drawn, best, strict=True) if found is not None]
    print(f"== devices and cuts, {stages[0]}-{stages[1]} stages: {len(kept)} problems; goal {goal}")
    problems = [each.instance for each, _ in kept]
    policy = shipped_policy()
    rng, rows = np.random.default_rng(0), {}
    given = [exact_on(one.instance, one.given_order) for one, _ in kept]
    rows["given order + exact"] = np.array(given)
    for name, take in (("greedy", 1), ("16 orders", 16)):
        proposals = proposed(policy, problems, samples=take)
        for budget in (1, 40):
            rows[f"network, {name} + its cuts, {budget} steps"] = np.array(
                [
                    own_cuts_s(problem, found.orders, found.cuts, budget)
                    for problem, found in zip(problems, proposals, strict=True)
                    if found is not None
                ]
            )
        rows[f"network, {name} + exact cuts, 40 steps"] = np.array(
            [
                scored_orders(problem, found.orders, 40)[0].min()
                for problem, found in zip(problems, proposals, strict=True)
                if found is not None
            ]
        )
    blocks = [block_orders(problem) for problem in problems]
    rows["16 orders with types together, 40 steps"] = np.array(
        [
            scored_orders(problem, own[rng.integers(len(own), size=16)], 40)[0].min()
            for problem, own in zip(problems, blocks, strict=True)
        ]
    )
    least_s = np.min([*rows.values(), [found.objective_s for _, found in kept]], axis=0)
    for name, step_s in rows.items():
        fits = np.isfinite(step_s)
        note = f"{100 * (1 - fits.mean()):.1f} % do not fit" if not fits.all() else ""
        shown(name, gap_percent(step_s[fits], least_s[fits]), note)


def exact_on(problem: JointInstance, order: np.ndarray) -> float:
    """Returns the simulated step of the exact cuts on one order; inf if none fit."""
    pipeline = problem.ordered(order)
    (found,) = solve_exact_many([pipeline.closed_form()])
    return np.inf if found is None else simulated_step_s(pipeline, found.cuts)


def own_cuts_s(problem: JointInstance, orders: np.ndarray, cuts: np.ndarray, budget: int) -> float:
    """Returns the least simulated step of orders with the cuts that are proposed for them.

    Each is searched on by some simulated steps; one is none beside the cuts' own.
    """
    steps_s = []
    for order, own in zip(orders, cuts, strict=True):
        offsets = offsets_of(own[None], problem.num_layers)
        steps_s.append(improved(problem.flow(order), offsets, budget, 0)[0][0])
    return float(min(steps_s))


def speed() -> None:
    """Prints what a candidate costs: decoding alone, and from a pipeline to its cuts."""
    print("== CPU time per candidate, greedy, 64 layers, 16 stages")
    policy = shipped_policy()
    family = Family(layers=(64, 64), stages=(16, 16))
    drawn = [draw(family, np.random.default_rng(seed)) for seed in range(1000)]
    for count, samples in product((1, 64, 256, 1000), (1, 16)):
        some = drawn[:count]
        chains, _ = chains_of(some, is_simulated=False)

        def decode(chains: object = chains, samples: int = samples) -> object:
            return decoded(policy.config, policy.params, chains, samples=samples, seed=0)

        alone_s = cpu_s(decode)
        prepared_s = cpu_s(lambda some=some: chains_of(some, is_simulated=False))
        rate = count / (alone_s + prepared_s)
        print(
            f"   {count:5d} candidates, {samples:2d} each: decode {1e6 * alone_s / count:8.1f} us, "
            f"prepare {1e6 * prepared_s / count:6.1f} us, {rate:8.0f} candidates/s"
        )


def speed_of_orders() -> None:
    """Prints what proposing orders of devices costs, what prepares a problem apart."""
    print("== CPU time per problem, orders of devices, 12 to 16 stages, 256 problems")
    policy = shipped_policy()
    drawn = draw_placements(256, HELD_OUT_SEED, stages=(12, 16))
    problems = [each.instance for each in drawn]
    inputs, _ = placement_inputs(problems)
    for samples in (1, 16):

        def propose(samples: int = samples) -> object:
            found, _ = likely_orders(policy.order_config, policy.order_params, inputs, samples)
            return found.block_until_ready()

        spent_s = cpu_s(propose)
        print(
            f"   {samples:2d} orders each: {1e6 * spent_s / 256:8.1f} us, {256 / spent_s:8.0f} "
            f"problems/s, {256 * samples / spent_s:8.0f} orders/s"
        )
    prepared_s = cpu_s(lambda: placement_inputs(problems))
    print(f"   prepare {1e6 * prepared_s / 256:.1f} us")


def cpu_s(call: Callable[[], object], times: int = 5) -> float:
    """Returns the median CPU time of a call, the first one left out."""
    call()
    found = []
    for _ in range(times):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return float(np.median(found))


def main() -> None:
    """Prints all tables."""
    keep_compiled_programs()
    part = 5 if "--quick" in sys.argv else 1
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}")
    originals(500 // part)
    closed_form("closed", 600 // part, "greedy 0.4 / 1.5, best of 16 + refinement 0.05 / 0.3")
    for family, count in (("closed_speeds", 100), ("closed_heads", 100), ("closed_large", 64)):
        closed_form(family, count // part, "best of 16 + refinement 0.3")
    simulated("simulated", 300 // part, "greedy 1.6, best of 16 0.8, + refinement 0.25")
    simulated("interleaved", 120 // part, "best of 16 + refinement half the gap of min-max or less")
    goals = ("16 orders 0.2, greedy 0.8", "16 orders 0.4", "16 orders 1.5")
    for stages, count, goal in zip(((4, 8), (12, 16), (20, 32)), (150, 60, 25), goals, strict=True):
        joint(stages, count // part, goal)
    speed()
    speed_of_orders()


if __name__ == "__main__":
    main()
