"""What a network was trained on, so that one can tell when costs have changed since."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import Any, Final

import numpy as np

from apss_jax.partitioning.balanced import balanced_cuts
from apss_jax.training.instances import draw_many
from apss_jax.training.objective import Objective
from apss_jax.training.trainer import TrainingConfig

_FAMILIES: Final = ("original", "closed", "simulated", "interleaved")
_EACH: Final = 5


def cost_fingerprint() -> str:
    """Returns a digest of what some problems' solutions take, to six digits.

    It changes when the objective, the simulator or the problems that training draws change.
    """
    figures: list[str] = []
    for family in _FAMILIES:
        for instance in draw_many(family, _EACH, seed=0):
            usual_s = (instance.forward_s + instance.backward_s).mean(axis=0)
            cuts = balanced_cuts(usual_s, instance.num_pieces)
            ends = np.append(cuts + 1, instance.num_layers)[None]
            for is_simulated in (False, True):
                objective = Objective.of(instance, is_simulated=is_simulated)
                figures.append(f"{objective.costs_s(ends)[0]:.6g}")
    return sha256(",".join(figures).encode()).hexdigest()[:16]


def training_figures(config: TrainingConfig) -> dict[str, Any]:
    """Returns what a checkpoint says of its training."""
    told = asdict(config)
    del told["network"]
    return {"cost_fingerprint": cost_fingerprint(), "training": told}
