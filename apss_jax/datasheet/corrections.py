"""The measurements of a cluster, applied to what the datasheet says about a model's units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float

from apss_jax.datasheet.collectives import CommValues
from apss_jax.datasheet.grid import Grid
from apss_jax.datasheet.measured import Found
from apss_jax.datasheet.relatives import Family
from apss_jax.datasheet.tensor_links import TENSOR, TensorLinks
from apss_jax.datasheet.unit_costs import UnitCosts
from apss_jax.datasheet.work import Work
from apss_jax.schema.tables import PASSES, Setting

SettingFlags = Bool[np.ndarray, "settings 1"]


def with_collectives(
    costs: UnitCosts, links: TensorLinks, grid: Grid, counted: SettingFlags
) -> UnitCosts:
    """Returns costs whose work contains the tensor collectives, in the settings that say so."""
    times_s = links.seconds(costs.comm_bytes, costs.comm_calls, grid)
    # Bytes of a layer's backward pass contain what recomputation repeats; its work does not.
    repeats = grid.recomputes_all if costs.is_layer else 0.0
    forward_s = counted * times_s[:, 0]
    backward_s = counted * times_s[:, 1] / (1.0 + repeats)
    work = replace(
        costs.work,
        forward_s=costs.work.forward_s + forward_s,
        backward_s=costs.work.backward_s + backward_s,
    )
    return replace(
        costs,
        work=work,
        comm_bytes=_without_tensor(costs.comm_bytes, counted),
        comm_calls=_without_tensor(costs.comm_calls, counted),
    )


def beside_collectives(costs: UnitCosts, links: TensorLinks, grid: Grid) -> UnitCosts:
    """Returns costs of a layer whose host launches while the tensor collectives run."""
    times_s = links.seconds(costs.comm_bytes, costs.comm_calls, grid)
    backward_s = times_s[:, 1] / (1.0 + grid.recomputes_all)  # without what recomputation repeats
    work = replace(costs.work, comm_forward_s=times_s[:, 0], comm_backward_s=backward_s)
    return replace(costs, work=work)


@dataclass(frozen=True)
class MeasuredUnit:
    """One kind of unit with what was measured; remembers what it has looked up."""

    families: tuple[Family | None, ...]  # one for each device type, None without measurements
    seq_len: int
    has_experts: bool
    is_same_stack: bool  # as the one that ran; else only the device's speed carries over
    _known: dict[tuple[int, int, int, str], Found] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Returns whether anything was measured."""
        return any(self.families)

    def applied(
        self, costs: UnitCosts, settings: Sequence[Setting], grid: Grid, links: TensorLinks
    ) -> UnitCosts:
        """Returns the costs with measured times where there are any."""
        if not self.exists:
            return costs
        columns = _Columns.like(costs.work)
        flags = np.zeros((len(settings), len(PASSES), len(self.families)), dtype=bool)
        contains_comm = np.zeros((len(settings), 1), dtype=bool)
        kept = np.full((len(settings), 1), np.nan)
        for device_type, family in enumerate(self.families):
            if family is None:
                continue
            for i, setting in enumerate(settings):
                found = self._found(device_type, family, setting)
                columns.put((i, device_type), found, with_host=self.is_same_stack)
                is_whole = self._ran_like(setting)
                flags[i, 0, device_type] = found.forward_measured and is_whole
                flags[i, 1, device_type] = found.backward_measured and is_whole
                contains_comm[i, 0] |= found.comm_included
                if self.is_same_stack and found.kept_factor is not None:
                    # Bytes are one figure for all types: the type that keeps most decides.
                    kept[i, 0] = np.fmax(kept[i, 0], found.kept_factor)
        # Bytes are one figure for all types: where one type's time contains its collectives, the
        # times of the others are given theirs.
        if contains_comm.any():
            costs = with_collectives(costs, links, grid, contains_comm)
        saved_bytes = costs.saved_bytes * np.where(np.isnan(kept), 1.0, kept)
        work = columns.corrected(costs.work)
        return replace(costs, work=work, saved_bytes=saved_bytes, is_measured=flags)

    def _found(self, device_type: int, family: Family, setting: Setting) -> Found:
        point = (setting.tensor_parallel, setting.micro_batch)
        key = (device_type, *point, setting.recompute)
        if key not in self._known:
            self._known[key] = family.find(*point, self.seq_len, setting.recompute)
        return self._known[key]

    def _ran_like(self, setting: Setting) -> bool:
        """Returns whether the setting has the degrees that measurements have."""
        splits_experts = self.has_experts and setting.expert_parallel > 1
        return self.is_same_stack and setting.context_parallel == 1 and not splits_experts


@dataclass(frozen=True)
class _Columns:
    """Corrections for every setting and device type, to begin with those that change nothing."""

    forward_factor: Float[np.ndarray, "settings device_types"]
    backward_factor: Float[np.ndarray, "settings device_types"]
    host_forward_s: Float[np.ndarray, "settings device_types"]
    host_backward_s: Float[np.ndarray, "settings device_types"]

    @staticmethod
    def like(work: Work) -> _Columns:
        ones = np.ones_like(work.forward_s)
        return _Columns(ones, ones.copy(), work.host_forward_s.copy(), work.host_backward_s.copy())

    def put(self, at: tuple[int, int], found: Found, *, with_host: bool) -> None:
        """Sets one setting's corrections on one device type."""
        self.forward_factor[at] = found.forward.device_factor
        self.backward_factor[at] = found.backward.device_factor
        if with_host:
            self.host_forward_s[at] = found.forward.host_s
            self.host_backward_s[at] = found.backward.host_s

    def corrected(self, work: Work) -> Work:
        """Returns the work as it was measured."""
        return Work(
            forward_s=work.forward_s * self.forward_factor,
            backward_s=work.backward_s * self.backward_factor,
            selective_s=work.selective_s * self.forward_factor,
            host_forward_s=self.host_forward_s,
            host_backward_s=self.host_backward_s,
        )


def _without_tensor(values: CommValues, counted: SettingFlags) -> CommValues:
    kept = values.copy()
    kept[:, :, TENSOR] *= ~counted
    return kept
