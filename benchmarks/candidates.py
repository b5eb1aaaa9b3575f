"""CPU time and counts of the enumeration of layouts and of the policy, and the memory they take."""

import resource
import time
from collections.abc import Callable

from apss_jax.datasheet.table import UnitTables
from apss_jax.legality.facts import facts_of
from apss_jax.planning.candidates import Candidates, find_candidates
from apss_jax.planning.enumeration import layout_blocks
from apss_jax.planning.heuristics import Bounds
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.tables import weight_bytes_of

# (model, cluster, global batch, tokens per sequence)
PROBLEMS = (
    ("gpt2", "4x4xT4-16GB", 32, 1024),
    ("llama-3.1-70b", "128x8xH100-SXM5-80GB", 1024, 4096),
    ("llama-3.1-405b", "2048x8xH100-SXM5-80GB", 4096, 8192),
)


def cpu_s(work: Callable[[], object]) -> float:
    """Returns the CPU time of one call."""
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def measure(model: str, cluster: str, global_batch: int, seq_len: int) -> None:
    """Prints the figures of one problem."""
    inputs = gather_inputs(model, cluster, global_batch=global_batch, seq_len=seq_len)
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    tables = UnitTables(inputs.model, inputs.cluster, inputs.workload, inputs.stack).tables
    weight_bytes = weight_bytes_of(inputs.workload)
    bounds = Bounds.of(facts, inputs.cluster, inputs.stack, tables, weight_bytes)
    sizes: list[int] = []
    found: list[Candidates] = []
    listing_s = cpu_s(lambda: sizes.extend(len(block) for block in layout_blocks(facts)))
    policy_s = cpu_s(lambda: found.append(find_candidates(facts, bounds)))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{model} on {cluster}, batch {global_batch} x {seq_len} tokens")
    print(f"  enumeration {listing_s:.3f} s CPU: {sum(sizes)} legal, {max(sizes)} at once")
    print(
        f"  with policy {policy_s:.3f} s CPU: {len(found[0].layouts)} kept, {peak_mb:.0f} MB peak"
    )
    print(f"  dropped {found[0].dropped}")


def main() -> None:
    """Measures every problem."""
    for problem in PROBLEMS:
        measure(*problem)


if __name__ == "__main__":
    main()
