"""The path that decides a simulated step, and what it says of other cuts."""

from typing import Any

import numpy as np
import pytest
from numba import njit
from pipeline_instances import random_cuts, random_pipeline

from apss_jax.partitioning import flow_kernels, path_kernels
from apss_jax.partitioning.flow import Flow
from apss_jax.partitioning.pipeline import PipelineInstance, offsets_of

EXACT = 1e-9
SCHEDULES = [
    *((1, 3, 1), (2, 64, 1), (5, 3, 1), (5, 96, 1), (8, 40, 1)),
    *((2, 8, 2), (4, 12, 3), (4, 96, 2)),
]


@njit
def _found(
    schedule: Any, blocking: float, room: Any, problem: Any, offsets: Any, limit_s: float
) -> float:
    flow_kernels.fill_pieces(problem, offsets, 0, room[0].shape[1], room[0])
    step_s = flow_kernels.step_s(schedule, blocking, room, limit_s)
    path_kernels.add_path(schedule, blocking, room)
    return step_s


@njit
def _length_after(problem: Any, offsets: Any, room: Any, move: Any, is_followed: bool) -> float:
    """Returns the longest path once a block has moved and come back, or has moved once."""
    first, last, step = move
    path_kernels.measure_paths(problem, offsets, room)
    if is_followed:
        for way in (step, -step):
            offsets[first : last + 1] += way
            path_kernels.follow_move(problem, offsets, room, first, last, way)
    return path_kernels.length_after(room, first, last, step, np.inf)


class Paths:
    """The simulator of one pipeline, and the paths of what it has simulated."""

    def __init__(self, flow: Flow) -> None:
        self.problem, self.schedule, self.blocking = flow.arguments()
        self.room = flow.room()

    def simulate(self, offsets: np.ndarray, limit_s: float = np.inf) -> float:
        """Returns the step of some cuts, inf if it reaches the limit, and keeps its path."""
        problem, schedule = self.problem, self.schedule
        return float(_found(schedule, self.blocking, self.room, problem, offsets, limit_s))

    def newest_s(self) -> float:
        """Returns what the newest path takes with the pieces simulated last."""
        pieces = self.room[0]
        return float((self.newest() * pieces).sum())

    def newest(self) -> np.ndarray:
        """Returns how often the newest path passes each piece."""
        marks, paths = self.room[4], self.room[5]
        return paths[marks[flow_kernels.NEWEST], : flow_kernels.NUM_PIECE_ROWS].copy()


def drawn(
    seed: int, stages: int, micro_batches: int, chunks: int
) -> tuple[PipelineInstance, np.ndarray]:
    """Returns a pipeline with messages that block in part, and two rows of its offsets."""
    rng = np.random.default_rng(seed)
    layers = 3 * stages * chunks
    one = random_pipeline(rng, layers, stages, micro_batches, virtual_stages=chunks)
    cuts = np.array([random_cuts(rng, one) for _ in range(2)])
    return one, offsets_of(cuts, one.num_layers)


@pytest.mark.parametrize("sizes", SCHEDULES)
@pytest.mark.parametrize("blocking", [0.0, 0.7])
def test_newest_path_is_the_step(sizes: tuple[int, int, int], blocking: float) -> None:
    """What the path passes takes exactly as long as the step, rounds that were skipped included."""
    for seed in range(20):
        one, offsets = drawn(seed, *sizes)
        paths = Paths(one.flow())
        paths.blocking = blocking
        for row in offsets:
            step_s = paths.simulate(row)
            assert paths.newest_s() == pytest.approx(step_s, rel=EXACT)


@pytest.mark.parametrize("sizes", SCHEDULES)
def test_path_of_other_cuts_is_no_longer_than_their_step(sizes: tuple[int, int, int]) -> None:
    """A path found with some cuts is a bound from below for any others."""
    for seed in range(20):
        one, (here, there) = drawn(seed, *sizes)
        paths = Paths(one.flow())
        paths.simulate(here)
        kept = paths.newest()
        step_s = paths.simulate(there)
        assert (kept * paths.room[0]).sum() <= step_s * (1 + EXACT)


@pytest.mark.parametrize("sizes", SCHEDULES[1:5])
def test_path_of_a_step_that_was_cut_short(sizes: tuple[int, int, int]) -> None:
    """Where the limit ends a simulation, the path reaches the limit and not beyond the step."""
    ended = 0
    for seed in range(20):
        one, (here, _) = drawn(seed, *sizes)
        paths = Paths(one.flow())
        step_s = paths.simulate(here)
        limit_s = 0.97 * step_s
        ended += paths.simulate(here, limit_s) == np.inf
        assert limit_s <= paths.newest_s() * (1 + EXACT) <= step_s * (1 + 2 * EXACT)
    assert ended == 20


@pytest.mark.parametrize("sizes", [(5, 96, 1), (4, 12, 3)])
@pytest.mark.parametrize("is_followed", [False, True])
def test_length_after_a_move(sizes: tuple[int, int, int], is_followed: bool) -> None:
    """What the paths say of a block of cuts that moves is what they take once it has moved."""
    moved = 0
    for seed in range(60):
        one, (here, there) = drawn(seed, *sizes)
        rng, paths, kept = np.random.default_rng(seed), Paths(one.flow()), []
        for offsets in (here, there):
            paths.simulate(offsets)
            kept.append(paths.newest())
        first, last = np.sort(rng.integers(1, one.num_pieces, 2)).tolist()
        step = int(rng.choice([-1, 1]))
        after = there.copy()
        after[first : last + 1] += step
        if (np.diff(after) < 1).any():
            continue
        moved += 1
        told_s = _length_after(paths.problem, there, paths.room, (first, last, step), is_followed)
        paths.simulate(after)
        assert told_s == pytest.approx(
            max((each * paths.room[0]).sum() for each in kept), rel=EXACT
        )
    assert moved > 20
