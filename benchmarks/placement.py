"""Methods that choose devices and cuts together, against the best known, with their CPU time.

First on synthetic clusters of mixed devices: the gap to the best that any method found, a
portfolio of many more steps among them; how many answers do not fit; CPU milliseconds a problem.
How much longer simpler plans take than what a portfolio finds is said on more problems, also of
host lists that mix types, and of types that differ by more than 3.2 in speed.
Then, for each mixed cluster of the library, the plan of a search against its own layout on the
devices in the order given: cut in equal numbers of layers, for an averaged device, and exactly.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np

from apss_jax.partitioning.balanced import uniform_cuts
from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import is_lattice_small, lattice_front
from apss_jax.partitioning.pipeline import PipelineInstance, fits, simulated_step_s
from apss_jax.partitioning.portfolio import arranged, block_orders
from apss_jax.partitioning.refinement import refined_cuts
from apss_jax.planning.choice import Choice
from apss_jax.planning.clock import Clock
from apss_jax.planning.costing import cost_choices
from apss_jax.planning.cutting import Candidate, Cutter, offsets_of
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.lineup import Lineup
from apss_jax.planning.pipelines import pipeline_of
from apss_jax.planning.placement import assign_devices, device_orders, place
from apss_jax.planning.refinement import refined
from apss_jax.planning.search import MAX_COSTED, Effort, cost_lineup
from apss_jax.planning.shortfall import excess_bytes
from apss_jax.planning.shortlist import shortlist
from apss_jax.planning.tables import cost_tables
from apss_jax.policy.joint import proposed_orders
from apss_jax.policy.weights import shipped_policy
from apss_jax.training.placements import Placement, draw_placements

COUNTS = {(4, 8): 150, (12, 16): 60, (20, 32): 25}
BUDGETS = (250, 500, 1_000, 4_000, 16_000)
NETWORK_BUDGETS = (100, 250, 500, 1_000)
GAIN_COUNTS = {(4, 8): 1_000, (12, 32): 300}
REFERENCE_BUDGET = 60_000
GAIN_BUDGET = 500  # of the portfolio whose gains are told
FAST_RATIO = 3.2
SEED, GAIN_SEED = 41_000, 44_000  # problems by which no setting was chosen
QUESTIONS = [
    ("gpt2-345m-amp", "amp-het-cluster", 32),
    ("transgan-amp", "amp-het-model", 64),
    *[
        ("llama-3.1-8b", f"mixed-{name}", 128)
        for name in ("a100-v100", "a100-40-80", "h100-a100", "h100-a100-bridge", "h100-a100-l40s")
    ],
    ("llama-3.1-8b", "mixed-h200-h100-a100-l40s", 128),
    ("llama-3.1-8b", "uneven-a100", 128),
]
Answer = tuple[float, bool]  # the simulated step; whether it fits
Method = Callable[[Placement], Answer]


def answer(pipeline: PipelineInstance, cuts: np.ndarray | None) -> Answer:
    """Returns the step of some cuts, and whether they fit."""
    if cuts is None:
        return np.inf, False
    return simulated_step_s(pipeline, cuts), fits(pipeline, cuts)


def uniform(problem: Placement) -> Answer:
    """Equal numbers of layers on the devices in the order given."""
    pipeline = problem.instance.ordered(problem.given_order)
    return answer(pipeline, uniform_cuts(pipeline.num_layers, pipeline.num_stages))


def averaged(problem: Placement) -> Answer:
    """Exact cuts for devices that are all the mean of those there are, memory left aside."""
    pipeline = problem.instance.ordered(problem.given_order)
    return answer(pipeline, averaged_cuts(pipeline))


def averaged_cuts(pipeline: PipelineInstance) -> np.ndarray:
    """Returns the exact cuts if all devices and links were the mean of those there are."""
    rows = {
        name: np.tile(getattr(pipeline, name).mean(axis=0), (pipeline.num_pieces, 1))
        for name in ("forward_s", "backward_s", "gradient_s")
    }
    rows["transfer_s"] = np.tile(pipeline.transfer_s.mean(axis=1), (pipeline.num_pieces - 1, 1)).T
    rows["capacity_bytes"] = np.full(pipeline.num_stages, np.inf)
    solved = solve_exact(replace(pipeline, **rows).closed_form())
    assert solved is not None  # without limits, everything fits
    return solved.cuts


def exact(problem: Placement) -> Answer:
    """Exact cuts of the closed form on the devices in the order given."""
    return best_cuts(problem.instance, problem.given_order)


def best_cuts(instance: JointInstance, order: np.ndarray) -> Answer:
    """Returns the exact cuts of the closed form on one order."""
    pipeline = instance.ordered(order)
    solved = solve_exact(pipeline.closed_form())
    return answer(pipeline, solved.cuts if solved else None)


def fastest(answers: list[Answer]) -> Answer:
    """Returns the least step of those that fit."""
    return min((one for one in answers if one[1]), default=(np.inf, False))


def blocks(problem: Placement) -> Answer:
    """Exact cuts on the types one after the other, in every sequence."""
    instance = problem.instance
    return fastest([best_cuts(instance, order) for order in block_orders(instance)])


def lattice(problem: Placement) -> Answer:
    """What the search for the joint optimum of the closed form found, the schedule followed."""
    instance = problem.instance
    if not is_lattice_small(instance):
        return np.inf, False
    front = lattice_front(instance)
    return fastest([answer(instance.ordered(one.order), one.cuts) for one in front])


def searched_lattice(problem: Placement) -> Answer:
    """The same, the best four with a search of their cuts."""
    instance = problem.instance
    if not is_lattice_small(instance):
        return np.inf, False
    front = [(instance.ordered(one.order), one.cuts) for one in lattice_front(instance)]
    front.sort(key=lambda pair: simulated_step_s(*pair))
    steps_s = [refined_cuts(pair[0], pair[1][None]).step_s[0] for pair in front[:4]]
    return min(steps_s, default=np.inf), bool(steps_s)


def portfolio(budget: int, seed: int = 0) -> Method:
    """Returns the method that simulates so many steps."""

    def method(problem: Placement) -> Answer:
        found = arranged(problem.instance, budget=budget, seed=seed)
        return (found.objective_s, True) if found else (np.inf, False)

    return method


def proposals_of(problems: list[Placement]) -> tuple[dict[int, np.ndarray], float]:
    """Returns 16 orders of the network for each problem, by its id; CPU milliseconds of each."""
    instances, policy = [each.instance for each in problems], shipped_policy()
    proposed_orders(policy, instances, samples=16)  # compiles
    start_s = time.process_time()
    found = proposed_orders(policy, instances, samples=16)
    spent_ms = 1e3 * (time.process_time() - start_s) / len(problems)
    orders = {
        id(problem): own[0] for problem, own in zip(problems, found, strict=True) if own is not None
    }
    return orders, spent_ms


def with_network(orders: dict[int, np.ndarray], budget: int) -> Method:
    """Returns the portfolio that begins with the network's orders too."""

    def method(problem: Placement) -> Answer:
        own = orders.get(id(problem))
        found = arranged(problem.instance, budget=budget, proposals=own)
        return (found.objective_s, True) if found else (np.inf, False)

    return method


METHODS: dict[str, Method] = {
    "given order, uniform": uniform,
    "given order, averaged device": averaged,
    "given order, exact": exact,
    "type blocks, exact": blocks,
    "lattice": lattice,
    "lattice, cut search": searched_lattice,
    **{f"portfolio {budget}": portfolio(budget) for budget in BUDGETS},
}


def synthetic(stages: tuple[int, int], count: int) -> None:
    """Prints a row for each method on problems with some numbers of stages."""
    problems = list(draw_placements(count, SEED, stages=stages))
    for method in METHODS.values():
        method(problems[0])
    rows = {name: timed(method, problems) for name, method in METHODS.items()}
    orders, network_ms = proposals_of(problems)
    for budget in NETWORK_BUDGETS:
        steps_s, ok, spent_ms = timed(with_network(orders, budget), problems)
        rows[f"16 network orders + {budget}"] = (steps_s, ok, spent_ms + network_ms)
    reference = [portfolio(REFERENCE_BUDGET, seed=1)(problem) for problem in problems]
    fitting = [np.where(ok, steps, np.inf) for steps, ok, _ in rows.values()]
    best_s = np.min([*fitting, [step for step, _ in reference]], axis=0)
    some = np.isfinite(best_s)
    print(f"\n{stages[0]}-{stages[1]} stages, {int(some.sum())} of {count} problems have an answer")
    print(f"{'method':30}{'gap mean':>9}{'p95 %':>8}{'max':>8}{'unfit %':>9}{'ms':>9}")
    for name, (steps_s, ok, spent_ms) in rows.items():
        good = some & ok
        gaps = 100 * (steps_s[good] / best_s[good] - 1)
        figures = (gaps.mean(), np.percentile(gaps, 95), gaps.max())
        unfit = 100 * (1 - ok[some].mean())
        print(
            f"{name:30}{figures[0]:9.2f}{figures[1]:8.2f}{figures[2]:8.2f}{unfit:9.1f}{spent_ms:9.2f}"
        )


def gains(stages: tuple[int, int], count: int) -> None:
    """Prints how much longer plans take that take less care, by kind of host list."""
    problems = list(draw_placements(count, GAIN_SEED, stages=stages))
    found_s, found, spent_ms = timed(portfolio(GAIN_BUDGET), problems)
    baselines = {
        name: timed(METHODS[name], problems)
        for name in list(METHODS)[:4]  # on the order given, and with types together
    }
    mixed = np.array([is_mixed(each.given_order) for each in problems])
    kinds = {
        "all": found,
        "host lists that mix types": found & mixed,
        "host lists type by type": found & ~mixed,
        f"speeds beyond {FAST_RATIO}": found & (np.array(list(map(ratio, problems))) > FAST_RATIO),
    }
    reference = f"portfolio {GAIN_BUDGET} ({spent_ms:.1f} ms)"
    print(f"\n{stages[0]}-{stages[1]} stages, % longer than {reference}")
    for (name, (steps_s, ok, _)), (kind, chosen) in product(baselines.items(), kinds.items()):
        some = chosen & ok
        longer = 100 * (steps_s[some] / found_s[some] - 1)
        error = longer.std() / np.sqrt(len(longer))
        unfit = 100 * (1 - ok[chosen].mean())
        print(
            f"{name:30}{kind:28}{longer.mean():7.1f} +- {error:4.1f} ({len(longer)}), "
            f"{unfit:.0f} % do not fit"
        )


def is_mixed(order: np.ndarray) -> bool:
    """Tells whether some type stands in two places of an order."""
    return int((np.diff(order) != 0).sum()) + 1 > len(np.unique(order))


def ratio(problem: Placement) -> float:
    """Returns how many times slower than the fastest type the slowest is."""
    times_s = problem.instance.type_forward_s.sum(axis=1)
    return float(times_s.max() / times_s.min())


def timed(method: Method, problems: list[Placement]) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the step of each problem, whether it fits, and the mean CPU time in milliseconds."""
    start_s = time.process_time()
    answers = [method(problem) for problem in problems]
    spent_ms = 1e3 * (time.process_time() - start_s) / len(problems)
    return np.array([a[0] for a in answers]), np.array([a[1] for a in answers]), spent_ms


def library(model: str, cluster: str, batch: int) -> str:
    """Returns the row of one question: our step, and how much longer each baseline takes."""
    inputs = gather_inputs(model, cluster, global_batch=batch)
    chosen = shortlist(inputs, {}, use_policy=True)
    tables = cost_tables(inputs, [layout.setting for layout in chosen.layouts])
    lineup = Lineup.of(inputs, chosen, tables)
    found = cost_lineup(inputs, tables, lineup, Effort("exact", 5, MAX_COSTED), Clock())
    best = refined(inputs, tables, found, 5, "exact")
    layout, step_s = best.choices[0].layout, best.costs.step_time_s[0]
    devices = assign_devices(inputs.topology, next(iter(device_orders(inputs.topology))), layout)
    if devices is None or layout.pipeline_parallel == 1:
        return f"{cluster:28}{step_s:9.3f}  one stage, or no devices in the order given"
    placed = place(inputs.topology, devices, layout.expert_parallel)
    own = Candidate(layout, placed, best.choices[0].num_micro_batches)
    table = tables.by_setting[layout.setting]
    cutters = [
        Cutter(inputs.cluster, inputs.stack, tables.problem, name) for name in ("uniform", "exact")
    ]
    even, solved = (cutter.choices([own], tables)[0] for cutter in cutters)
    cuts = averaged_cuts(pipeline_of(cutters[1], own, table))
    mean = Choice(layout, placed, offsets_of(cuts, table), own.num_micro_batches)
    baselines = [even, mean, solved]
    costs = cost_choices(tables.problem, tables.index, baselines)
    fitting = excess_bytes(inputs, baselines, costs) < 0
    before = found.best(1).costs.step_time_s[0]
    cells = [
        f"{100 * (longer_s / step_s - 1):9.1f}{' ' if ok else '*'}"
        for longer_s, ok in zip(costs.step_time_s, fitting, strict=True)
    ]
    return f"{cluster:28}{step_s:9.3f}{''.join(cells)}{100 * (before / step_s - 1):9.2f}"


def main() -> None:
    """Prints the tables; arguments choose: `4`, `12`, `20` stages, `1` gains, `0` the library."""
    chosen = {int(argument) for argument in sys.argv[1:]}
    for stages, count in COUNTS.items():
        if not chosen or stages[0] in chosen:
            synthetic(stages, count)
    for stages, count in GAIN_COUNTS.items():
        if not chosen or 1 in chosen:
            gains(stages, count)
    if not chosen or 0 in chosen:
        print("\nstep in s; % longer: given order + uniform, averaged device, exact; three orders")
        print("(* does not fit)")
        for question in QUESTIONS:
            print(library(*question), flush=True)


if __name__ == "__main__":
    main()
