"""Unit tables: every unit of a model under one setting, or under many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from apss_jax.datasheet.boundaries import carried_values
from apss_jax.datasheet.ends import embedding_costs, head_costs, tied_parameters
from apss_jax.datasheet.grid import Grid, SettingColumn, grid_of
from apss_jax.datasheet.layer_facts import LayerFacts, facts_of
from apss_jax.datasheet.rates import Rates, rates_of
from apss_jax.datasheet.unit_costs import UnitCosts, layer_costs
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layers import Layer
from apss_jax.schema.model import Embedding, Model
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
    """The tables of one model on one cluster; what no setting changes is computed once."""

    model: Model
    cluster: ClusterProfile
    workload: Workload
    stack: Stack

    def tables(self, settings: Sequence[Setting]) -> list[UnitTable]:
        """Returns one table for each setting, in order."""
        grid = grid_of(settings, self.workload.seq_len, self.workload.precision)
        kinds = self._kinds(grid)
        carried_bytes = grid.value_bytes * grid.tokens / grid.sequence_divisor
        tied = tied_parameters(self._hidden_size, self._embedding.vocab_size, self.model.head, grid)
        columns = _Columns(kinds, self._unit_kinds)
        return columns.tables(
            settings,
            self.cluster.used_types,
            boundary_bytes=carried_bytes * self._carried_values,
            tied_parameters=tied,
        )

    def _kinds(self, grid: Grid) -> list[UnitCosts]:
        """Returns the costs of the embedding, of each distinct layer, and of the head."""
        hidden, embedding = self._hidden_size, self._embedding
        first = embedding_costs(hidden, embedding, self.model, grid, self._rates)
        last = head_costs(hidden, embedding.vocab_size, self.model, grid, self._rates)
        layers = [layer_costs(facts, grid, self._rates) for facts in self._layer_facts]
        return [first, *layers, last]

    @property
    def _hidden_size(self) -> int:
        assert self.model.hidden_size is not None
        return self.model.hidden_size

    @property
    def _embedding(self) -> Embedding:
        assert self.model.embedding is not None
        return self.model.embedding

    @cached_property
    def _rates(self) -> Rates:
        precision = self.workload.precision
        return rates_of(self.cluster, self.cluster.used_types, precision, self.stack)

    @cached_property
    def _distinct_layers(self) -> dict[Layer, int]:
        distinct = dict.fromkeys(run.layer for run in self.model.layers)
        return {layer: index for index, layer in enumerate(distinct)}

    @cached_property
    def _layer_facts(self) -> list[LayerFacts]:
        return [facts_of(layer, self._hidden_size) for layer in self._distinct_layers]

    @cached_property
    def _unit_kinds(self) -> Int[np.ndarray, " units"]:
        """Returns the kind of each unit: 0 the embedding, then distinct layers, then the head."""
        found = [0]
        for run in self.model.layers:
            found += [1 + self._distinct_layers[run.layer]] * run.repeat
        return np.array([*found, 1 + len(self._distinct_layers)])

    @cached_property
    def _carried_values(self) -> Float[np.ndarray, " units"]:
        return carried_values(self._hidden_size, self.model)


@dataclass(frozen=True)
class _Columns:
    """Costs of distinct kinds of unit, to be spread over the units."""

    kinds: list[UnitCosts]
    unit_kinds: Int[np.ndarray, " units"]

    def tables(
        self,
        settings: Sequence[Setting],
        device_types: tuple[str, ...],
        *,
        boundary_bytes: Float[np.ndarray, "settings units"],
        tied_parameters: SettingColumn,
    ) -> list[UnitTable]:
        """Returns one table for each setting, each a view of arrays that all share."""
        compute_s = self._spread([_pass_times(kind) for kind in self.kinds])
        comm_bytes = self._spread([kind.comm_bytes for kind in self.kinds])
        comm_calls = self._spread([kind.comm_calls for kind in self.kinds])
        dense = self._spread([kind.held.dense[:, 0] for kind in self.kinds])
        expert = self._spread([kind.held.expert[:, 0] for kind in self.kinds])
        saved = self._spread([kind.saved_bytes[:, 0] for kind in self.kinds])
        working = self._spread([kind.working_bytes[:, 0] for kind in self.kinds])
        flops = self._spread([kind.model_flops[:, 0] for kind in self.kinds])
        measured_s = np.zeros((len(settings), len(device_types), len(self.unit_kinds)))
        return [
            UnitTable(
                setting=setting,
                device_types=device_types,
                compute_s=compute_s[i],
                measured_s=measured_s[i],
                comm_bytes=comm_bytes[i],
                comm_calls=comm_calls[i],
                dense_parameters=dense[i],
                expert_parameters=expert[i],
                tied_parameters=float(tied_parameters[i, 0]),
                saved_bytes=saved[i],
                working_bytes=working[i],
                boundary_bytes=boundary_bytes[i],
                model_flops=flops[i],
                has_ends=True,
            )
            for i, setting in enumerate(settings)
        ]

    def _spread(self, by_kind: list[np.ndarray]) -> np.ndarray:
        return np.stack(by_kind, axis=-1)[..., self.unit_kinds]


def _pass_times(kind: UnitCosts) -> Float[np.ndarray, "settings passes device_types"]:
    times = kind.times
    return np.stack([times.forward_s, times.backward_s + times.recompute_s], axis=1)
