"""CPU time of what a search builds on the host: schedule tables, links of large clusters."""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from apss_jax.cost.op_table import table_from_order
from apss_jax.cost.schedule import SCHEDULES
from apss_jax.importers.clusters import load_cluster
from apss_jax.schema.topology import Topology

REPEATS = 5
TABLES = (("1f1b", 16, 64, 1), ("1f1b", 64, 256, 1), ("interleaved_1f1b", 16, 64, 4))
CLUSTERS = ((32, 8), (256, 8), (2048, 8))


def best_ms(work: Callable[[], object]) -> float:
    """Returns the least CPU time of a few calls, in milliseconds."""
    times_s = []
    for _ in range(REPEATS):
        start_s = time.process_time()
        work()
        times_s.append(time.process_time() - start_s)
    return min(times_s) * 1e3


def build(name: str, stages: int, micro_batches: int, chunks: int) -> None:
    """Builds one schedule table."""
    table_from_order(SCHEDULES[name].order(stages, micro_batches, chunks), num_chunks=chunks)


def look_at_links(nodes: int, devices: int) -> None:
    """Reads tensor groups, gradient groups and transfers between two halves of a cluster."""
    topology = Topology.of(load_cluster(f"{nodes}x{devices}xH100"))
    ids = np.arange(nodes * devices)
    topology.group_links(ids.reshape(-1, devices))
    topology.group_links(ids.reshape(nodes, devices).T)
    topology.transfer_link(*ids.reshape(2, 1, -1))


def main() -> None:
    """Prints the time of each table and each cluster."""
    for name, stages, micro_batches, chunks in TABLES:
        spent_ms = best_ms(partial(build, name, stages, micro_batches, chunks))
        sizes = f"{stages} stages, {micro_batches} micro-batches, {chunks} chunks"
        print(f"{name:17} {sizes:41} {spent_ms:7.2f} ms")
    for nodes, devices in CLUSTERS:
        spent_ms = best_ms(partial(look_at_links, nodes, devices))
        print(f"links of {nodes * devices:6} devices {'':38} {spent_ms:7.2f} ms")


if __name__ == "__main__":
    main()
