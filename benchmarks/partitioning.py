"""CPU time of the exact partitioner per candidate, on random instances of three sizes.

Slow and fast devices, gradient terms in most instances, tight memory in two of five. The reference
is a C implementation of the same objective on one core of a loaded machine, as its authors state;
the times here include building the tables, and are the process's own CPU time.
"""

import time

import numpy as np

from apss_jax.partitioning.balanced import balanced_cuts
from apss_jax.partitioning.exact import solve_exact, solve_exact_many
from apss_jax.partitioning.instance import PartitionInstance, stage_sums

COUNT = 1000
REFERENCE_US = {(30, 16): (39, 67), (64, 16): (167, 296), (128, 64): (1266, 3184)}


def random_layers(rng: np.random.Generator, layers: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns costs and parameters of blocks between an embedding and a heavy head."""
    costs = np.exp(rng.normal(0, rng.choice([0.0, 0.05, 0.4]), layers))
    if rng.random() < 0.2:
        costs[rng.integers(3) :: 3] *= rng.uniform(0.3, 3)
    parameters = costs.copy() if rng.random() < 0.6 else np.ones(layers)
    head = np.exp(rng.uniform(np.log(0.2), np.log(8)))
    costs[0], costs[-1] = rng.uniform(0.02, 0.3), head
    parameters[0] = parameters[-1] = head
    return costs, parameters


def random_slowness(rng: np.random.Generator, stages: int) -> np.ndarray:
    """Returns equal stages, two kinds of device in a row, or a different one at each stage."""
    kind = rng.random()
    if kind < 0.4:
        return np.ones(stages)
    if kind < 0.8:
        return np.where(np.arange(stages) < rng.integers(1, stages), rng.uniform(1.1, 3), 1.0)
    return np.exp(rng.normal(0, 0.25, stages))


def random_instance(rng: np.random.Generator, layers: int, stages: int) -> PartitionInstance:
    """Returns a problem whose balanced stage takes one unit of time."""
    costs, parameters = random_layers(rng, layers)
    slowness, num_micro_batches = random_slowness(rng, stages), int(np.exp(rng.uniform(1.4, 4.8)))
    unit_s = np.sum(1 / slowness) / costs.sum()
    link_s = np.exp(rng.uniform(np.log(1e-3), np.log(0.5))) * rng.choice([1.0, 0.2], stages - 1)
    gradient = np.exp(rng.uniform(np.log(0.05), np.log(5))) if rng.random() < 0.7 else 0.0
    gradient_s = gradient * stages / parameters.sum() * rng.choice([1.0, 2.5], stages, p=[0.7, 0.3])
    in_flight = np.minimum(stages - np.arange(stages), num_micro_batches)
    activations = parameters.mean() * rng.uniform(0.05, 0.5) / stages
    memory = parameters + in_flight[:, None] * activations
    used = stage_sums(memory, balanced_cuts(costs, stages)).max() * rng.uniform(0.8, 1.4)
    return PartitionInstance(
        layer_cost_s=slowness[:, None] * costs * unit_s,
        boundary_cost_s=np.tile(link_s, (layers - 1, 1)),
        gradient_cost_s=gradient_s[:, None] * parameters,
        memory_bytes=memory,
        capacity_bytes=np.full(stages, used if rng.random() < 0.4 else np.inf),
        num_micro_batches=num_micro_batches,
    )


def cpu_time_us(instances: list[PartitionInstance]) -> tuple[float, list[float]]:
    """Returns the mean when solved together, and the time of each when solved alone."""
    start_s = time.process_time()
    solve_exact_many(instances)
    mean_us = (time.process_time() - start_s) / len(instances) * 1e6
    single_us = []
    for instance in instances:
        start_s = time.process_time()
        solve_exact(instance)
        single_us.append((time.process_time() - start_s) * 1e6)
    return mean_us, single_us


def main() -> None:
    """Prints a row for each size."""
    print("layers stages   mean us    alone: mean    p95    max us   infeasible   C version us")
    for (layers, stages), (low_us, high_us) in REFERENCE_US.items():
        rng = np.random.default_rng(0)
        instances = [random_instance(rng, layers, stages) for _ in range(COUNT)]
        infeasible = sum(p is None for p in solve_exact_many(instances))
        mean_us, single_us = cpu_time_us(instances)
        print(
            f"{layers:6} {stages:6} {mean_us:9.0f} {np.mean(single_us):14.0f}"
            f" {np.percentile(single_us, 95):6.0f} {max(single_us):9.0f}"
            f" {infeasible / COUNT:11.1%} {low_us:8}-{high_us}"
        )


if __name__ == "__main__":
    main()
