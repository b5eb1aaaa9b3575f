"""Frozen problems by seed, and how far solutions of them are from the best that is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64, Int

from apss_jax.partitioning.exact import solve_exact_many
from apss_jax.partitioning.pipeline import PipelineInstance
from apss_jax.policy.batched import decoded
from apss_jax.policy.chains import Chain, chains_of, size_for
from apss_jax.policy.weights import Policy
from apss_jax.training.instances import FAMILIES, draw_many
from apss_jax.training.objective import Objective, costs_of_all
from apss_jax.training.trainer import neighbours

HELD_OUT_SEED = 20_000
"""Training draws with other seeds."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Problems that no training saw, each with a solution that fits, and the exact closed form."""

    instances: list[PipelineInstance]
    objectives: list[Objective]
    chains: Chain
    exact_ends: Int[np.ndarray, "batch stages"]
    exact_s: Float64[np.ndarray, "batch"]
    """The objective of the exact solution of the closed form: the least, if that is scored."""
    constant_s: Float64[np.ndarray, "batch"]
    """What every solution takes and the original's objective leaves out; else 0."""

    def costs_s(
        self, ends: Int[np.ndarray, "batch samples stages"]
    ) -> Float64[np.ndarray, "batch samples"]:
        """Returns the objective of some solutions of each problem."""
        return costs_of_all(self.objectives, ends) - self.constant_s[:, None]


def held_out(family: str, count: int, *, with_reference: bool = True) -> HeldOut:
    """Returns the problems of a family that have a solution, of `count` that are drawn."""
    instances = list(draw_many(family, count, HELD_OUT_SEED))
    return problems_of(
        instances,
        is_simulated=FAMILIES[family].is_simulated,
        with_reference=with_reference,
        is_original=FAMILIES[family].is_original,
    )


def problems_of(
    instances: list[PipelineInstance],
    *,
    is_simulated: bool,
    with_reference: bool,
    is_original: bool = False,
) -> HeldOut:
    """Returns problems that are ready to be decoded; those without a solution are left out."""
    exact = solve_exact_many([instance.closed_form() for instance in instances])
    pairs = [(each, found.cuts) for each, found in zip(instances, exact, strict=True) if found]
    kept = [instance for instance, _ in pairs]
    size = size_for(max(instance.num_pieces for instance in kept))
    shown = [cuts for _, cuts in pairs] if with_reference and is_simulated else None
    chains, _ = chains_of(kept, is_simulated=is_simulated, references=shown, size=size)
    ends = np.stack([_padded_ends(each.num_layers, cuts, size[0]) for each, cuts in pairs])
    objectives = [Objective.of(each, is_simulated=is_simulated) for each in kept]
    whole_s = np.array([each.time_s[0, -1] if is_original else 0.0 for each in objectives])
    exact_s = costs_of_all(objectives, ends[:, None])[:, 0] - whole_s
    return HeldOut(kept, objectives, chains, ends, exact_s, whole_s)


def _padded_ends(
    num_layers: int, cuts: Int[np.ndarray, "cuts"], pieces: int
) -> Int[np.ndarray, "stages"]:
    return np.pad(np.append(cuts + 1, num_layers), (0, pieces - len(cuts) - 1), mode="edge")


def network_costs_s(
    policy: Policy, problems: HeldOut, *, samples: int, seed: int = 0
) -> Float64[np.ndarray, "batch samples"]:
    """Returns the objectives of the likeliest solution and of `samples - 1` drawn ones."""
    ends = decoded(policy.config, policy.params, problems.chains, samples=samples, seed=seed)
    return problems.costs_s(ends)


def gap_percent(
    found_s: Float[np.ndarray, "batch"], best_s: Float[np.ndarray, "batch"]
) -> tuple[float, float]:
    """Returns mean and 95th percentile of what solutions take more than the best ones."""
    gap = 100 * (found_s / best_s - 1)
    return float(gap.mean()), float(np.percentile(gap, 95))


def quick_figures(policy: Policy, problems: dict[str, HeldOut]) -> dict[str, float]:
    """Returns the gap of the likeliest and of the best of 16 to the exact closed-form solution.

    Under the simulator it is negative where the network is better.
    """
    figures = {}
    for name, some in problems.items():
        costs_s = network_costs_s(policy, some, samples=16)
        figures[f"{name}_greedy_percent"] = gap_percent(costs_s[:, 0], some.exact_s)[0]
        figures[f"{name}_best_of_16_percent"] = gap_percent(costs_s.min(axis=1), some.exact_s)[0]
    return figures


def varied(
    problems: HeldOut, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "batch samples stages"]:
    """Returns the exact solution and `count - 1` random variations of it: blocks of cuts moved."""
    found = [problems.exact_ends]
    for _ in range(count - 1):
        ends = problems.exact_ends
        for _ in range(int(rng.integers(1, 4))):
            ends = neighbours(ends, problems.chains.num_pieces, 1, rng)[:, 0]
        found.append(ends)
    return np.stack(found, axis=1)


def best_of(
    problems: HeldOut, ends: Int[np.ndarray, "batch samples stages"]
) -> Int[np.ndarray, "batch stages"]:
    """Returns the best of the solutions of each problem."""
    return ends[np.arange(len(ends)), problems.costs_s(ends).argmin(axis=1)]


def refined(
    problems: HeldOut, ends: Int[np.ndarray, "batch stages"], budget: int
) -> Int[np.ndarray, "batch stages"]:
    """Returns what a local search finds from one solution of each problem.

    By the simulator for at most `budget` steps; by the closed form until no block of cuts that is
    moved by a layer is better.
    """
    found = ends.copy()
    for row, objective in enumerate(problems.objectives):
        own = ends[row, : objective.flow.num_pieces][None]
        if objective.is_simulated:
            better = objective.improved(own, budget)
        else:
            better = _climbed(objective, own)
        found[row, : own.shape[1]] = better[0]
    return found


def _climbed(
    objective: Objective, ends: Int[np.ndarray, "_ pieces"]
) -> Int[np.ndarray, "_ pieces"]:
    """Returns the local optimum of the closed form that best moves lead to."""
    cuts = ends.shape[1] - 1
    blocks = [(a, b) for a in range(cuts) for b in range(a + 1, cuts + 1)]
    moves = np.zeros((2 * len(blocks), cuts + 1), ends.dtype)
    for place, (a, b) in enumerate(blocks):
        moves[2 * place, a:b], moves[2 * place + 1, a:b] = 1, -1
    best_s = objective.costs_s(ends)[0]
    while cuts:
        costs_s = objective.costs_s(ends + moves)
        place = int(costs_s.argmin())
        if not costs_s[place] < best_s * (1 - 1e-12):
            break
        ends, best_s = ends + moves[place : place + 1], costs_s[place]
    return ends
