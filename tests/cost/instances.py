"""Random plans for the simulator, and the same plans for the event queue."""

import jax
import numpy as np
from event_queue import Pipeline

from apss_jax.cost.op_table import ScheduleTable, pad_table
from apss_jax.cost.schedule import build_table
from apss_jax.cost.simulate import StageTimes

# One padded shape for all instances, larger than each of them.
SLOTS, STAGES, CHUNKS = 160, 8, 3

Sizes = tuple[int, int, int]  # stages, micro-batches, chunks


def random_times(seed: int, batch: int, stages: int, chunks: int) -> StageTimes:
    """Returns plans whose stages, links and cuts all differ, some with slow or free links."""
    rng = np.random.default_rng(seed)
    shape = (batch, chunks, stages)
    link_s = rng.choice([0.0, 0.05, 0.5, 3.0], size=(batch, 1, 1))
    return StageTimes(
        forward_s=rng.lognormal(0.0, 0.7, shape),
        backward_s=rng.lognormal(0.7, 0.7, shape),
        forward_transfer_s=link_s * rng.lognormal(0.0, 0.5, shape),
        backward_transfer_s=link_s * rng.lognormal(0.0, 0.5, shape),
        tail_s=rng.uniform(0.0, 2.0, (batch, stages)) * rng.integers(0, 2, (batch, 1)),
        blocking_fraction=rng.choice([0.0, 0.4, 1.0], size=batch),
    )


def random_sizes(schedule: str, number: int) -> list[Sizes]:
    """Returns sizes that the schedule can run, fewer micro-batches than stages among them."""
    rng = np.random.default_rng(7)
    if schedule == "interleaved_1f1b":
        stages = rng.integers(2, 6, number)
        rounds, chunks = rng.integers(1, 4, number), rng.integers(2, CHUNKS + 1, number)
        return [
            (int(p), int(p * r), int(v)) for p, r, v in zip(stages, rounds, chunks, strict=True)
        ]
    stages, micro_batches = rng.integers(1, STAGES, number), rng.integers(1, 14, number)
    return [(int(p), int(m), 1) for p, m in zip(stages, micro_batches, strict=True)]


def padded_table(schedule: str, sizes: Sizes) -> ScheduleTable:
    """Returns the schedule's table in the common shape."""
    return pad_table(build_table(schedule, *sizes), SLOTS, STAGES)


def event_pipeline(schedule: str, sizes: Sizes, times: StageTimes) -> Pipeline:
    """Returns one plan, run by the event queue."""
    lists = jax.tree.map(lambda values: np.asarray(values).tolist(), times)
    return Pipeline(
        schedule,
        *sizes,
        seconds={"F": lists.forward_s, "B": lists.backward_s},
        transfer={"F": lists.forward_transfer_s, "B": lists.backward_transfer_s},
        blocking=lists.blocking_fraction,
    ).run()


def one(times: StageTimes, index: int) -> StageTimes:
    """Returns a single plan of a batch."""
    return jax.tree.map(lambda values: values[index], times)


def equal_times(stages: int, chunks: int, forward_s: float, backward_s: float) -> StageTimes:
    """Returns one plan with equal stages, free links and no tail."""
    zero, each = np.zeros((chunks, stages)), np.ones((chunks, stages))
    return StageTimes(
        forward_s * each, backward_s * each, zero, zero, np.zeros(stages), np.asarray(0.0)
    )
