"""Plans per CPU-second of the full cost: step time, breakdown, collectives and memory, on one core.

64 layers between an embedding and a head on 16 stages of 8 replicas, 64 micro-batches, 4,096 plans
at once whose cuts all differ. The simulated cost follows the schedule; the closed form does not.
"""

import os
import time

# One core: what is measured is CPU time, and threads that wait for work would count.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from apss_jax.cost.batched import closed_form_costs, step_costs
from apss_jax.cost.schedule import build_folded_table
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import ReadyTable, stack_strategies
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.lineup import Placer
from apss_jax.planning.tables import cost_tables
from apss_jax.schema.layout import Layout

MODEL, CLUSTER = "qwen3-32b", "16x8xH100-SXM5-80GB"
LAYOUT = Layout(tensor_parallel=1, pipeline_parallel=16, data_parallel=8)
MICRO_BATCHES, BATCH, REPEATS = 64, 4096, 30


def random_choices(candidate: Any, num_units: int) -> list[Choice]:
    """Returns one layout with cuts drawn at random."""
    rng = np.random.default_rng(0)
    inner = np.arange(1, num_units)
    drawn = [np.sort(rng.choice(inner, LAYOUT.pipeline_parallel - 1, False)) for _ in range(BATCH)]
    offsets = [np.concatenate([[0], cuts, [num_units]]) for cuts in drawn]
    plain = Choice(LAYOUT, candidate.placement, offsets[0], MICRO_BATCHES)
    return [replace(plain, offsets=found) for found in offsets]


def report(name: str, run: Callable[[], Any]) -> None:
    """Prints what the first call takes, and plans per CPU-second of the quickest later one."""
    spent_s = []
    for _ in range(REPEATS + 1):
        start_s = time.process_time()
        jax.block_until_ready(run())  # type: ignore[no-untyped-call]
        spent_s.append(time.process_time() - start_s)
    best_s = min(spent_s[1:])
    print(f"{name:12} {spent_s[0]:8.2f} {best_s / BATCH * 1e6:9.2f} {BATCH / best_s:12,.0f}")


def main() -> None:
    """Prints a row for each way to a cost."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    inputs = gather_inputs(MODEL, CLUSTER, global_batch=LAYOUT.data_parallel * MICRO_BATCHES)
    tables = cost_tables(inputs, [LAYOUT.setting])
    problem = jax.device_put(tables.problem)
    choices = random_choices(Placer(inputs).candidates(LAYOUT)[0], tables.num_units)
    table = ReadyTable.of(build_folded_table, choices[0].table_key)
    strategies = jax.device_put(stack_strategies(problem, tables.index, choices, table))
    print(f"{'cost':12} {'first s':>8} {'us/plan':>9} {'plans/CPU-s':>12}")
    report("closed form", lambda: closed_form_costs(problem, strategies))
    report("simulated", lambda: step_costs(problem, strategies, table.on_device))


if __name__ == "__main__":
    main()
