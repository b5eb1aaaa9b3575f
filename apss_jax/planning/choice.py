"""One choice in full: degrees, devices, and which units stand on which virtual stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from apss_jax.planning.placement import Placement
from apss_jax.schema.layout import Layout

Offsets = Int[np.ndarray, " offsets"]


@dataclass(frozen=True, eq=False)
class Choice:
    """A layout on devices, cut into virtual stages.

    Virtual stage u = chunk x stages + stage runs units `offsets[u]` to `offsets[u + 1]`.
    """

    layout: Layout
    placement: Placement
    offsets: Offsets
    num_micro_batches: int

    @property
    def num_pieces(self) -> int:
        """Returns how many virtual stages there are."""
        return len(self.offsets) - 1

    @property
    def table_key(self) -> tuple[str, int, int, int]:
        """Returns what the schedule table depends on."""
        layout = self.layout
        return (
            layout.schedule,
            layout.pipeline_parallel,
            self.num_micro_batches,
            layout.virtual_stages,
        )

    @property
    def unit_ranges(
        self,
    ) -> tuple[Int[np.ndarray, "chunks stages"], Int[np.ndarray, "chunks stages"]]:
        """Returns the first unit of every chunk, and the one after its last."""
        shape = (self.layout.virtual_stages, self.layout.pipeline_parallel)
        return self.offsets[:-1].reshape(shape), self.offsets[1:].reshape(shape)
