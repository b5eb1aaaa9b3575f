"""Unit tables: every unit of a model under one setting, or under many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from apss_jax.datasheet.corrections import (
    MeasuredUnit,
    beside_collectives,
    with_collectives,
)
from apss_jax.datasheet.grid import Grid, grid_of, measured_grid
from apss_jax.datasheet.kinds import Kinds
from apss_jax.datasheet.layer_table import row_tables
from apss_jax.datasheet.measured import Anchor, anchors_of
from apss_jax.datasheet.rates import Rates, rates_of
from apss_jax.datasheet.relatives import (
    Family,
    Member,
    Relative,
    carried_over,
    relatives,
    size_of,
)
from apss_jax.datasheet.tensor_links import TensorLinks
from apss_jax.datasheet.unit_costs import UnitCosts
from apss_jax.datasheet.work import Values
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.model import Model
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import Setting, UnitTable
from apss_jax.schema.workload import Workload


def unit_table(
    model: Model, cluster: ClusterProfile, workload: Workload, stack: Stack, setting: Setting
) -> UnitTable:
    """Returns the table of one setting; `UnitTables` serves many settings for little more."""
    return UnitTables(model, cluster, workload, stack).tables([setting])[0]


@dataclass(frozen=True)
class UnitTables:
    """The tables of one model on one cluster; what no setting changes is computed once.

    `measured_stack` is the software under which the cluster was measured, where it is not `stack`:
    then only the devices' speed carries over, and no time counts as measured.
    """

    model: Model
    cluster: ClusterProfile
    workload: Workload
    stack: Stack
    measured_stack: Stack | None = None

    def tables(self, settings: Sequence[Setting]) -> list[UnitTable]:
        """Returns one table for each setting, in order; raises `InputError`."""
        if not settings:
            return []
        grid = grid_of(settings, self.workload.seq_len, self.workload.precision)
        if self.model.table is not None:
            return row_tables(self.model.table, self.cluster, self.stack, settings, grid)
        kinds = [self._costs(kind, settings, grid) for kind in range(self._kinds.count)]
        costs = self._kinds.with_sides(kinds, grid, self._rates)
        return self._placed(costs, settings, grid)

    @property
    def carried_over(self) -> list[str]:
        """Returns in words which measured shapes stand for parts that were not measured."""
        if self.model.table is not None or not self.cluster.measurements:
            return []
        shapes = [self._kinds.shape(kind) for kind in range(self._kinds.count)]
        return carried_over(shapes, self.cluster, self.workload)

    def _costs(self, kind: int, settings: Sequence[Setting], grid: Grid) -> UnitCosts:
        computed = self._kinds.costs(kind, grid, self._rates)
        if computed.is_layer and not self._measured[kind].exists:
            return beside_collectives(computed, self._links, grid)
        return self._measured[kind].applied(computed, settings, grid, self._links)

    def _placed(
        self, costs: list[UnitCosts], settings: Sequence[Setting], grid: Grid
    ) -> list[UnitTable]:
        """Returns the costs of kinds at the units they stand for, as views of shared arrays."""
        times = [kind.times(grid) for kind in costs]
        kinds_of_units = self._kinds.of_units

        def spread(by_kind: list[Values]) -> Values:
            return np.stack(by_kind, axis=-1)[..., kinds_of_units]

        carried_bytes = grid.value_bytes * grid.tokens / grid.sequence_divisor
        columns = {
            "compute_s": spread(
                [np.stack([t.forward_s, t.backward_s + t.recompute_s], axis=1) for t in times]
            ),
            "measured_s": spread(
                [k.measured_s(t, grid) for k, t in zip(costs, times, strict=True)]
            ),
            "comm_bytes": spread([k.comm_bytes for k in costs]),
            "comm_calls": spread([k.comm_calls for k in costs]),
            "dense_parameters": spread([k.held.dense[:, 0] for k in costs]),
            "expert_parameters": spread([k.held.expert[:, 0] for k in costs]),
            "saved_bytes": spread([k.saved_bytes[:, 0] for k in costs]),
            "working_bytes": spread([k.working_bytes[:, 0] for k in costs]),
            "boundary_bytes": carried_bytes * self._kinds.carried_values,
            "model_flops": spread([k.model_flops[:, 0] for k in costs]),
        }
        tied = self._kinds.tied_parameters(grid)
        return [
            UnitTable(
                setting=setting,
                device_types=self.cluster.used_types,
                tied_parameters=float(tied[i, 0]),
                has_ends=True,
                **{name: column[i] for name, column in columns.items()},
            )
            for i, setting in enumerate(settings)
        ]

    @cached_property
    def _kinds(self) -> Kinds:
        return Kinds.of(self.model)

    @cached_property
    def _links(self) -> TensorLinks:
        return TensorLinks(self.cluster, self.stack)

    @cached_property
    def _rates(self) -> Rates:
        types, precision = self.cluster.used_types, self.workload.precision
        return rates_of(self.cluster, types, precision, self.stack)

    @cached_property
    def _measured_rates(self) -> Rates:
        types, precision = self.cluster.used_types, self.workload.precision
        return rates_of(self.cluster, types, precision, self.measured_stack or self.stack)

    @cached_property
    def _measured(self) -> list[MeasuredUnit]:
        """Returns, for each kind, what was measured of it."""
        return [self._measured_unit(kind) for kind in range(self._kinds.count)]

    def _measured_unit(self, kind: int) -> MeasuredUnit:
        types = self.cluster.used_types
        return MeasuredUnit(
            families=tuple(self._family(kind, name, i) for i, name in enumerate(types)),
            seq_len=self.workload.seq_len,
            has_experts=self._kinds.has_experts(kind),
            is_same_stack=self.measured_stack in (None, self.stack),
        )

    def _family(self, kind: int, name: str, device_type: int) -> Family | None:
        shape = self._kinds.shape(kind)
        found = relatives(shape, self.cluster, self.workload, name)
        if not found:
            return None
        members = tuple(Member(one.size, self._anchors(one, device_type)) for one in found)
        return Family(members, size_of(shape), is_same=found[0].shape == shape)

    def _anchors(self, one: Relative, device_type: int) -> tuple[Anchor, ...]:
        points = measured_grid(one.rows, self.workload.precision)
        costs = self._kinds.costs_of(one.shape, points, self._measured_rates)
        included = np.array([[row.tensor_comm_included] for row in one.rows])
        if included.any():
            costs = with_collectives(costs, self._links, points, included)
        counted_bytes = costs.saved_bytes / self._measured_rates.activation_factor
        return tuple(anchors_of(one.rows, costs.work, counted_bytes, device_type))
