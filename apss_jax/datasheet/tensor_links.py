"""What tensor collectives take on the links of a cluster, where a measured time contains them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from apss_jax.datasheet.collectives import CommValues
from apss_jax.datasheet.grid import Grid
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import COMM_KINDS
from apss_jax.schema.topology import Topology

TENSOR = COMM_KINDS.index("tensor")

TypeCosts = Float[np.ndarray, "2 device_types"]
PassTimes = Float[np.ndarray, "settings passes device_types"]


@dataclass(frozen=True)
class TensorLinks:
    """Tensor groups of each device type: neighbours in rank order, as measurements run them."""

    cluster: ClusterProfile
    stack: Stack
    _known: dict[int, TypeCosts] = field(default_factory=dict)

    def seconds(self, num_bytes: CommValues, calls: CommValues, grid: Grid) -> PassTimes:
        """Returns the time of the tensor collectives of each pass."""
        degrees = grid.tensor_parallel[:, 0].astype(int)
        costs = np.array([self._costs(degree) for degree in degrees.tolist()])
        per_byte, per_call = costs[:, 0], costs[:, 1]
        moved = num_bytes[:, :, TENSOR, None] * per_byte[:, None]
        return moved + calls[:, :, TENSOR, None] * per_call[:, None]

    def _costs(self, degree: int) -> TypeCosts:
        """Returns seconds per byte of the gathered buffer, and per call, for each device type."""
        if degree not in self._known:
            self._known[degree] = self._link_costs(degree)
        return self._known[degree]

    def _link_costs(self, degree: int) -> TypeCosts:
        groups = [self._group(i, degree) for i in range(len(self.cluster.used_types))]
        links = [self._topology.group_link(group) for group in groups]
        share = (degree - 1) / degree
        per_byte = [share / link.bytes_per_s[0] for link in links]
        added_s = self.stack.collective_latency_s
        return np.array([per_byte, [link.latency_s[0] + added_s for link in links]])

    def _group(self, device_type: int, degree: int) -> Int[np.ndarray, " ranks"]:
        return np.flatnonzero(self._topology.device_type == device_type)[:degree]

    @cached_property
    def _topology(self) -> Topology:
        return Topology.of(self.cluster)
