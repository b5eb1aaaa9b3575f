"""The compiled simulator gives what the traced one gives."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pipeline_instances import random_cuts, random_pipeline

from apss_jax.cost.schedule import build_table
from apss_jax.cost.simulate import StageTimes, simulate
from apss_jax.partitioning.pipeline import PipelineInstance, simulated_step_s, simulated_steps_s

EXACT = 1e-9


@lru_cache
def _traced() -> Any:
    return jax.jit(simulate)


def traced_step_s(instance: PipelineInstance, cuts: np.ndarray) -> float:
    """Returns the step time by the cost model's own simulator, every row of the table run."""
    chunks, stages = instance.virtual_stages, instance.num_stages
    starts = np.concatenate([[0], cuts + 1])
    pieces = np.arange(instance.num_pieces)
    sent_s = np.append(instance.transfer_s[cuts, np.arange(len(cuts))], 0.0)

    def by_chunk(values: np.ndarray) -> Any:
        return jnp.asarray(values.reshape(chunks, stages), jnp.float64)

    def of_pieces(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts, axis=1)[pieces, pieces]

    name = "1f1b" if chunks == 1 else "interleaved_1f1b"
    times = StageTimes(
        forward_s=by_chunk(of_pieces(instance.forward_s)),
        backward_s=by_chunk(of_pieces(instance.backward_s)),
        forward_transfer_s=by_chunk(sent_s),
        backward_transfer_s=by_chunk(np.roll(sent_s, 1)),
        tail_s=by_chunk(of_pieces(instance.gradient_s)).sum(axis=0),
        blocking_fraction=jnp.asarray(instance.blocking_fraction, jnp.float64),
    )
    table = build_table(name, stages, instance.num_micro_batches, chunks)
    return float(_traced()(table, times).step_time_s)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 64), (5, 3), (5, 96)])
def test_1f1b_is_the_traced_simulation(stages: int, micro_batches: int) -> None:
    """Uneven layers, stages, links and tails, more and fewer micro-batches than stages."""
    rng = np.random.default_rng(100 * stages + micro_batches)
    with jax.enable_x64(True):
        for _ in range(30):
            one = random_pipeline(rng, 12, stages, micro_batches)
            one = replace(one, blocking_fraction=rng.choice([0.0, 0.7]))
            cuts = random_cuts(rng, one)
            assert simulated_step_s(one, cuts) == pytest.approx(traced_step_s(one, cuts), rel=EXACT)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 2), (4, 3, 8), (2, 3, 32)])
def test_interleaved_is_the_traced_simulation(stages: int, chunks: int, micro_batches: int) -> None:
    """Chunks share their stage and its links; many rounds repeat."""
    rng = np.random.default_rng(stages * chunks)
    with jax.enable_x64(True):
        for _ in range(30):
            one = random_pipeline(rng, 16, stages, micro_batches, virtual_stages=chunks)
            cuts = random_cuts(rng, one)
            assert simulated_step_s(one, cuts) == pytest.approx(traced_step_s(one, cuts), rel=EXACT)


def test_many_cuts_are_as_each_alone() -> None:
    """A batch leaves nothing behind that the next row sees."""
    rng = np.random.default_rng(0)
    one = random_pipeline(rng, 20, 6, 40)
    cuts = np.array([random_cuts(rng, one) for _ in range(20)])
    alone = [simulated_step_s(one, row) for row in cuts]
    assert simulated_steps_s(one, cuts).tolist() == alone


def test_steady_rounds_are_added_exactly() -> None:
    """Many micro-batches on slow links, whose rounds take several waves: as if each were run."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        one = random_pipeline(rng, 10, 5, 400)
        cuts = random_cuts(rng, one)
        long = simulated_step_s(one, cuts)
        ends = [simulated_step_s(replace(one, num_micro_batches=m), cuts) for m in (340, 370)]
        assert long - ends[1] == pytest.approx(ends[1] - ends[0], rel=1e-6)
