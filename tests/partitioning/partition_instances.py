"""Random partitioning problems, and the best partition of one by trying them all."""

from itertools import combinations

import numpy as np

from apss_jax.partitioning.instance import PartitionInstance


def random_instance(
    rng: np.random.Generator, layers: int, stages: int, *, scale_s: float = 1.0
) -> PartitionInstance:
    """Returns a problem whose stages differ layer by layer; memory is tight in half of them."""
    memory_bytes = rng.uniform(0, 1e11, (stages, layers)) * rng.integers(1, 4)
    even_bytes = memory_bytes.mean() * layers / stages
    tight = rng.random() < 0.5
    capacity_bytes = (
        even_bytes * rng.uniform(0.9, 1.8, stages) if tight else np.full(stages, np.inf)
    )
    gradient_weight = rng.choice([0.0, 0.3, 3.0])
    return PartitionInstance(
        layer_cost_s=scale_s * rng.uniform(0, 1, (stages, layers)) * rng.choice([0.1, 1], layers),
        boundary_cost_s=scale_s * rng.uniform(0, 2, (layers - 1, stages - 1)) * rng.random(),
        gradient_cost_s=scale_s * gradient_weight * rng.uniform(0, 4, (stages, layers)),
        memory_bytes=memory_bytes,
        capacity_bytes=capacity_bytes,
        num_micro_batches=int(rng.choice([1, 2, 8, 64])),
    )


def brute_force(instance: PartitionInstance) -> float:
    """Returns the least objective of the partitions that fit, or inf; shares no code with ours."""
    stages, layers = instance.layer_cost_s.shape
    best_s = np.inf
    for cuts in combinations(range(1, layers), stages - 1):
        pieces = [slice(a, b) for a, b in zip((0, *cuts), (*cuts, layers), strict=True)]
        time_s = [instance.layer_cost_s[s, piece].sum() for s, piece in enumerate(pieces)]
        gradient_s = [instance.gradient_cost_s[s, piece].sum() for s, piece in enumerate(pieces)]
        used_bytes = [instance.memory_bytes[s, piece].sum() for s, piece in enumerate(pieces)]
        if any(u > c for u, c in zip(used_bytes, instance.capacity_bytes, strict=True)):
            continue
        boundary_s = sum(instance.boundary_cost_s[cut - 1, j] for j, cut in enumerate(cuts))
        rounds_s = (instance.num_micro_batches - 1) * max(time_s)
        best_s = min(best_s, sum(time_s) + rounds_s + boundary_s + max(gradient_s))
    return best_s
