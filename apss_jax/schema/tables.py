"""What each part of a model costs under one setting: the tables that all planning reads.

A *unit* is what a pipeline may be cut between: the embedding (with the towers), each layer, the
head (with the layers of multi-token prediction); a model given as a table has its rows alone. A
table is the same whether its figures were measured or computed from datasheets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

from apss_jax.schema.plan import Recompute

COMM_KINDS: Final = ("tensor", "context", "expert")
PASSES: Final = ("forward", "backward")


@dataclass(frozen=True)
class Setting:
    """What decides the cost of a layer on one device, apart from which device it is."""

    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    micro_batch: int = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    pipelined: bool = False  # in a pipeline AND tensor parallel: some stacks' hosts take longer


@dataclass(frozen=True)
class UnitTable:
    """Costs of every unit for ONE micro-batch on one device under one setting.

    Compute leaves communication out. `comm_bytes` counts one-way collectives (an all-gather, a
    reduce-scatter, an all-to-all; an all-reduce is two of them) by the size of the WHOLE gathered
    buffer: a group of n moves (n - 1) / n of it through each device. `comm_calls` counts them.
    The backward pass contains what recomputation repeats. Measured times that include their
    tensor collectives have no tensor bytes or calls.
    """

    setting: Setting
    device_types: tuple[str, ...]
    compute_s: Float[np.ndarray, "passes device_types units"]
    measured_s: Float[np.ndarray, "device_types units"]  # the part of compute_s that was measured
    comm_bytes: Float[np.ndarray, "passes comm_kinds units"]
    comm_calls: Float[np.ndarray, "passes comm_kinds units"]
    dense_parameters: Float[np.ndarray, " units"]  # held by one device, experts apart
    expert_parameters: Float[np.ndarray, " units"]  # held by one device
    tied_parameters: float  # held again by the head's device when it is not the embedding's
    saved_bytes: Float[np.ndarray, " units"]  # kept from forward to backward, per micro-batch
    working_bytes: Float[np.ndarray, " units"]  # needed for a moment only, beside what is saved
    boundary_bytes: Float[np.ndarray, " units"]  # what leaves each unit for the next, one device
    model_flops: Float[np.ndarray, " units"]  # forward + backward of the whole model, no recompute
    has_ends: bool  # whether the first unit is an embedding and the last a head

    @property
    def num_units(self) -> int:
        """Returns the number of units."""
        return self.dense_parameters.shape[0]
