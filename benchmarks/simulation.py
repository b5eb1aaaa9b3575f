"""Plans that the pipeline simulator costs per CPU-second, and what its compilation takes."""

import os
import time

# One core: what is measured is CPU time, and threads that wait for work would count.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np

from apss_jax.cost.op_table import pad_table
from apss_jax.cost.schedule import build_table
from apss_jax.cost.simulate import StageTimes, simulate

REPEATS = 5
PADDED_SLOTS = 512
CASES = [
    ("1f1b", 16, 64, 1, 1),
    ("1f1b", 16, 64, 1, 64),
    ("1f1b", 16, 64, 1, 256),
    ("1f1b", 16, 64, 1, 1024),
    ("1f1b", 16, 64, 1, 4096),
    ("gpipe", 16, 64, 1, 1024),
    ("interleaved_1f1b", 16, 64, 2, 1024),
]


def random_times(batch: int, stages: int, chunks: int) -> StageTimes:
    """Returns plans with stages and links that all differ."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.uniform(0.1, 1.0, (batch, *shape)).astype(np.float32)

    cells = (chunks, stages)
    return StageTimes(draw(*cells), draw(*cells), draw(*cells), draw(*cells), draw(stages), draw())


def main() -> None:
    """Prints a row for each schedule and batch."""
    print(f"{'schedule':18} stages micro-batches chunks  batch  first s  us/plan  plans/CPU-s")
    for name, stages, micro_batches, chunks, batch in CASES:
        table = build_table(name, stages, micro_batches, chunks)
        table = pad_table(table, PADDED_SLOTS, stages)
        times = random_times(batch, stages, chunks)
        run = jax.jit(jax.vmap(simulate, in_axes=(None, 0)))
        spent_s = []
        for _ in range(REPEATS + 1):
            start_s = time.process_time()
            jax.block_until_ready(run(table, times))
            spent_s.append(time.process_time() - start_s)
        first_s, best_s = spent_s[0], min(spent_s[1:])
        print(
            f"{name:18} {stages:6} {micro_batches:13} {chunks:6} {batch:6} {first_s:8.2f} "
            f"{best_s / batch * 1e6:8.1f} {batch / best_s:12.0f}"
        )


if __name__ == "__main__":
    main()
