"""Partitioning for people who bring their own costs: by the solvers, or by the network alone."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import ArrayLike

from apss_jax.partitioning.solve import SOLVERS as REFERENCES
from apss_jax.partitioning.solve import reference_cuts, require_problem

SOLVERS: Final = ("dpsn", *REFERENCES)
"""What `partition` can be asked for: the network, or one of the solvers it is measured by."""


def partition(
    layer_costs: ArrayLike,
    boundary_costs: ArrayLike,
    *,
    num_stages: int,
    num_micro_batches: int = 2,
    solver: str = "exact",
    samples: int = 1,
    seed: int = 0,
) -> Int64[np.ndarray, "batch cuts"]:
    """Returns where to cut each model: the index of the last layer before each cut, ascending.

    `layer_costs` is [batch, layers], one micro-batch through each layer in any unit of time;
    `boundary_costs` is [batch, layers - 1, stages - 1] in the same unit: boundary j when its cut is
    after layer i. The objective is (num_micro_batches - 1) * slowest stage + sum of stages + sum of
    the boundaries that are cut. "dpsn" is what the network decodes, no other solver asked: the most
    likely partition, or the best of it and `samples - 1` that are drawn with `seed`.
    Raises ValueError that names the argument, its value and the rule it broke.
    """
    if solver not in SOLVERS:
        raise ValueError(f"solver is {solver!r}; it must be one of {', '.join(SOLVERS)}")
    layer_cost_s, boundary_cost_s = require_problem(
        layer_costs,
        boundary_costs,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        samples=samples,
    )
    if solver != "dpsn":
        return reference_cuts(layer_cost_s, boundary_cost_s, num_micro_batches, solver)
    if num_stages == 1 or not len(layer_cost_s):
        return np.zeros((len(layer_cost_s), num_stages - 1), np.int64)
    return _decoded_cuts(layer_cost_s, boundary_cost_s, num_micro_batches, samples, seed)


def _decoded_cuts(
    layer_cost_s: Float64[np.ndarray, "batch layers"],
    boundary_cost_s: Float64[np.ndarray, "batch boundaries cuts"],
    num_micro_batches: int,
    samples: int,
    seed: int,
) -> Int64[np.ndarray, "batch cuts"]:
    from apss_jax.policy.batched import decoded
    from apss_jax.policy.chains import chains_of_subjects, timing_subjects
    from apss_jax.policy.weights import shipped_policy

    policy = shipped_policy()
    subjects = timing_subjects(layer_cost_s, boundary_cost_s, num_micro_batches)
    chains, _ = chains_of_subjects(subjects, is_simulated=False)
    ends = decoded(policy.config, policy.params, chains, samples=samples, seed=seed)
    cuts = ends[:, :, : boundary_cost_s.shape[2]].astype(np.int64) - 1
    scores_s = closed_forms_s(layer_cost_s, boundary_cost_s, cuts, num_micro_batches)
    return cuts[np.arange(len(cuts)), scores_s.argmin(axis=1)]


def closed_forms_s(
    layer_cost_s: Float64[np.ndarray, "batch layers"],
    boundary_cost_s: Float64[np.ndarray, "batch boundaries cuts"],
    cuts: Int64[np.ndarray, "batch samples cuts"],
    num_micro_batches: int,
) -> Float64[np.ndarray, "batch samples"]:
    """Returns the objective of several partitions of each model on equal stages."""
    layers = layer_cost_s.shape[1]
    before = np.pad(np.cumsum(layer_cost_s, axis=1), ((0, 0), (1, 0)))
    ends = np.pad(cuts + 1, ((0, 0), (0, 0), (1, 1)))
    ends[:, :, -1] = layers
    rows: Any = np.arange(len(cuts))[:, None, None]
    stages_s = np.diff(before[rows, ends], axis=2)
    boundary_s = boundary_cost_s[rows, cuts, np.arange(cuts.shape[2])].sum(axis=2)
    whole_s = stages_s.sum(axis=2) + boundary_s
    return whole_s + (num_micro_batches - 1) * stages_s.max(axis=2)
