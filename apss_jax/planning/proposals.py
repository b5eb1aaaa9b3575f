"""Cuts and devices that the network proposes for layouts, then searched on by the schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Bool, Int, Int64

from apss_jax.partitioning.joint import JointInstance
from apss_jax.partitioning.lattice import Arrangement
from apss_jax.partitioning.pipeline import PipelineInstance, offsets_of
from apss_jax.partitioning.portfolio import arranged, is_enumerated
from apss_jax.partitioning.refinement import improved
from apss_jax.policy.chains import SIZES, Size, chains_of, size_for
from apss_jax.policy.placements import has_size

SAMPLES: Final = 16
"""Partitions, and orders of devices, that the network proposes for a layout."""

SEARCH_BUDGET: Final = 60
"""Simulated steps of the search from the best of them."""

_LEAST_PIECES: Final = 16

Cuts = Int64[np.ndarray, "_"]


def proposed_cuts(
    pipelines: Sequence[PipelineInstance], known: Sequence[Cuts]
) -> list[Cuts | None]:
    """Returns for each pipeline the best of what is known and proposed, after a search from it.

    None where there is nothing to propose: one piece, more than the network takes, or memory that
    no partition fits when a stage's chunks share it equally.
    """
    found: list[Cuts | None] = [None] * len(pipelines)
    by_size: dict[Size, list[int]] = defaultdict(list)
    for row, pipeline in enumerate(pipelines):
        if 1 < pipeline.num_pieces <= SIZES[-1][0]:
            # Few pieces share the program of more: compiling another takes longer than padding.
            by_size[size_for(max(pipeline.num_pieces, _LEAST_PIECES))].append(row)
    for size, rows in by_size.items():
        some = [pipelines[row] for row in rows]
        own = [known[row] for row in rows]
        ends, is_feasible = _ends(some, own, size)
        for place in np.flatnonzero(is_feasible).tolist():
            cuts = ends[place, :, : some[place].num_pieces - 1].astype(np.int64) - 1
            tried = np.concatenate([own[place][None], cuts])
            found[rows[place]] = _searched(some[place], tried)
    return found


def _ends(
    pipelines: Sequence[PipelineInstance], known: Sequence[Cuts], size: Size
) -> tuple[Int[np.ndarray, "batch samples stages"], Bool[np.ndarray, " batch"]]:
    """Returns where pieces end in the partitions proposed for each pipeline, and which fit."""
    # Flax takes a third of a second to import; many searches have nothing to ask the network.
    from apss_jax.policy.batched import decoded
    from apss_jax.policy.weights import shipped_policy

    chains, is_feasible = chains_of(pipelines, is_simulated=True, references=known, size=size)
    policy = shipped_policy()
    ends = decoded(policy.config, policy.params, chains, samples=SAMPLES, seed=0)
    return ends, is_feasible


def proposed_arrangements(
    instances: Sequence[JointInstance], budget: int
) -> list[Arrangement | None]:
    """Returns for each problem what a search finds that begins with the network's orders.

    None where no order fits the memory, where orders are so few that a search of the budget looks
    at all of them, and where the problem is larger than the network takes.
    """
    found: list[Arrangement | None] = [None] * len(instances)
    rows = [
        row
        for row, instance in enumerate(instances)
        if has_size(instance) and not is_enumerated(instance, budget)
    ]
    if not rows:
        return found
    from apss_jax.policy.joint import proposed_orders
    from apss_jax.policy.weights import shipped_policy

    some = [instances[row] for row in rows]
    for row, own in zip(
        rows, proposed_orders(shipped_policy(), some, samples=SAMPLES), strict=True
    ):
        if own is not None:
            found[row] = arranged(instances[row], budget=budget, proposals=own[0])
    return found


def _searched(pipeline: PipelineInstance, cuts: Int64[np.ndarray, "samples cuts"]) -> Cuts:
    """Returns the cuts that a search finds from the best of some, by the simulated step."""
    flow, offsets = pipeline.flow(), offsets_of(cuts, pipeline.num_layers)
    step_s, _ = improved(flow, offsets, 1, 0)
    best = offsets[step_s.argmin()][None].copy()
    improved(flow, best, SEARCH_BUDGET, 0)
    return best[0, 1:-1] - 1
