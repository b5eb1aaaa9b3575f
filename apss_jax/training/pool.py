"""The problems that training goes back to, with the best solution known of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float64, Int, Int32

from apss_jax.partitioning.balanced import balanced_cuts, uniform_cuts
from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.pipeline import PipelineInstance
from apss_jax.policy.chains import Chain, Size, chains_of
from apss_jax.training.instances import FAMILIES, draw_many
from apss_jax.training.objective import Objective
from apss_jax.training.steps import keep_best

# Steps simulated by the search for a label: a fifth to half a percent better than 400 steps find
# from 17 stages on or with several chunks, 0.05 % below that.
_LABEL_BUDGET = 200


@dataclass(frozen=True)
class PoolPlan:
    """How many problems of which families one pool holds; all are padded to one size."""

    counts: tuple[tuple[str, int], ...]
    size: Size
    batch: int
    """Problems of one training step."""


@dataclass(eq=False)
class Pool:
    """Problems of one padded size; `elite_ends` and `elite_s` change as better ones are found."""

    objectives: list[Objective]
    chains: Chain
    heuristics: Int32[np.ndarray, "batch _ stages"]
    elite_ends: Int32[np.ndarray, "batch stages"]
    elite_s: Float64[np.ndarray, "batch"]

    def __len__(self) -> int:
        return len(self.objectives)

    def chain(self, rows: Int[np.ndarray, "_"]) -> Chain:
        """Returns some of the problems as the network sees them."""
        return jax.tree.map(lambda values: values[rows], self.chains)

    def offer(
        self,
        rows: Int[np.ndarray, "_"],
        ends: Int[np.ndarray, "_ samples stages"],
        costs_s: Float64[np.ndarray, "_ samples"],
    ) -> None:
        """Keeps the best of what is offered where it is better than what was known."""
        keep_best(self.elite_ends, self.elite_s, rows, ends, costs_s)


def build_pool(plan: PoolPlan, seed: int, *, with_labels: bool) -> Pool:
    """Returns the pool of a plan; problems that no partition fits are left out.

    With labels, the best solution known starts as the exact one, and under the simulator as what a
    search from there finds; without, as the best of three rules.
    """
    instances: list[PipelineInstance] = []
    simulated: list[bool] = []
    for family, count in plan.counts:
        instances += draw_many(family, count, seed)
        simulated += [FAMILIES[family].is_simulated] * count
    exact = solve_exact_many([instance.closed_form() for instance in instances])
    keep = [row for row, solution in enumerate(exact) if solution is not None]
    instances = [instances[row] for row in keep]
    simulated = [simulated[row] for row in keep]
    cuts = [solution.cuts for solution in exact if solution is not None]
    objectives = [
        Objective.of(instance, is_simulated=flag)
        for instance, flag in zip(instances, simulated, strict=True)
    ]
    chains = _chains(instances, simulated, cuts, plan.size)
    rules = np.stack([_padded(_rules(instance), plan.size[0]) for instance in instances])
    pool = Pool(
        objectives=objectives,
        chains=chains,
        heuristics=rules,
        elite_ends=rules[:, 0].copy(),
        elite_s=np.full(len(instances), np.inf),
    )
    _start(pool, cuts if with_labels else None)
    return pool


def _chains(
    instances: Sequence[PipelineInstance],
    simulated: Sequence[bool],
    cuts: Sequence[Any],
    size: Size,
) -> Chain:
    """Returns the problems; the exact solution is told only where the schedule is followed."""
    references = [each if flag else None for each, flag in zip(cuts, simulated, strict=True)]
    chains, _ = chains_of(instances, is_simulated=False, references=references, size=size)
    return chains._replace(is_simulated=np.array(simulated))


def _rules(instance: PipelineInstance) -> list[Int[np.ndarray, "pieces"]]:
    """Returns the ends of pieces with equal layers, equal parameters and equal times."""
    pieces, layers = instance.num_pieces, instance.num_layers
    usual_s = (instance.forward_s + instance.backward_s).mean(axis=0)
    found = [
        uniform_cuts(layers, pieces),
        balanced_cuts(instance.state_bytes, pieces),
        balanced_cuts(usual_s, pieces),
    ]
    return [np.append(cuts + 1, layers) for cuts in found]


def _padded(rows: Sequence[Int[np.ndarray, "_"]], pieces: int) -> Int32[np.ndarray, "_ stages"]:
    """Returns ends with those of padding after the last layer."""
    return np.stack([np.pad(row, (0, pieces - len(row)), mode="edge") for row in rows]).astype(
        np.int32
    )


def _start(pool: Pool, cuts: Sequence[Any] | None) -> None:
    """Offers the rules, and with labels the exact cuts and what a search finds from there."""
    width = pool.heuristics.shape[2]
    for row, objective in enumerate(pool.objectives):
        ends = pool.heuristics[row]
        pieces = objective.flow.num_pieces
        if cuts is not None:
            known = np.append(cuts[row] + 1, pool.chains.num_layers[row])[None]
            if objective.is_simulated:
                known = np.concatenate([known, objective.improved(known, _LABEL_BUDGET)])
            ends = np.concatenate([ends, _padded(list(known), width)])
        costs_s = objective.costs_s(ends[:, :pieces])
        pool.offer(np.array([row]), ends[None], costs_s[None])
