"""Costed choices as plan documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import cast

import numpy as np
from jaxtyping import Bool, Float

from apss_jax.cost.memory import StageMemory
from apss_jax.cost.step import Breakdown as TracedBreakdown
from apss_jax.planning.choice import Choice
from apss_jax.planning.costing import Costs
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.memory_risk import FITS_BELOW, oom_probability
from apss_jax.planning.tables import CostTables, total_flops
from apss_jax.planning.uncertainty import reach_of, step_time_error_fraction
from apss_jax.schema.plan import Breakdown, Chunk, Cost, MemoryBytes, Plan, Stage, ZeroStage
from apss_jax.schema.tables import UnitTable

BREAKDOWN_PARTS = TracedBreakdown._fields
MEMORY_PARTS = StageMemory._fields


@dataclass(frozen=True, eq=False)
class PlanWriter:
    """Writes the plans of one question."""

    inputs: Inputs
    tables: CostTables

    @property
    def _factor(self) -> float:
        """Returns the stack's factor on all times, which ranks no two plans differently."""
        return self.inputs.stack.time_factor

    def plan(
        self,
        choice: Choice,
        costs: Costs,
        row: int,
        *,
        rank: int = 1,
        explanation: Sequence[str] = (),
    ) -> Plan:
        """Returns the document of one choice; `row` is its place in `costs`."""
        layout, inputs = choice.layout, self.inputs
        table = self.tables.by_setting[layout.setting]
        stages = self._stages(choice, costs, row)
        measured = self._measured_fraction(stages)
        return Plan(
            rank=rank,
            tensor_parallel=layout.tensor_parallel,
            pipeline_parallel=layout.pipeline_parallel,
            data_parallel=layout.data_parallel,
            context_parallel=layout.context_parallel,
            expert_parallel=layout.expert_parallel,
            virtual_stages=layout.virtual_stages,
            micro_batch=layout.micro_batch,
            num_micro_batches=choice.num_micro_batches,
            zero_stage=cast(ZeroStage, layout.zero_stage),  # a legal layout has 0 to 3
            zero_shards=layout.zero_shards,
            sequence_parallel=layout.sequence_parallel,
            recompute=layout.recompute,
            schedule=layout.schedule,
            global_batch=inputs.workload.global_batch,
            seq_len=inputs.workload.seq_len,
            precision=inputs.workload.precision,
            model=inputs.model.name,
            cluster=inputs.cluster.name,
            stack=inputs.stack.name,
            stages=tuple(stages),
            cost=self._cost(choice, costs, row, table, measured),
            provenance=_provenance(measured),
            explanation=tuple(explanation),
        )

    def _stages(self, choice: Choice, costs: Costs, row: int) -> list[Stage]:
        numbers = range(choice.layout.pipeline_parallel)
        memory = [self._memory(choice, costs.memory_bytes[row, s], s) for s in numbers]
        needs = np.array([held.total for held in memory])
        chances = oom_probability(needs, choice.placement.capacity_bytes, self.inputs.stack)
        first, end = choice.unit_ranges
        spans = [list(zip(first[:, s].tolist(), end[:, s].tolist(), strict=True)) for s in numbers]
        seconds = (self._factor * each_s[row] for each_s in (costs.forward_s, costs.backward_s))
        forward_s, backward_s = (each_s.tolist() for each_s in seconds)
        return [
            self._stage(
                *(choice, s, spans[s], memory[s]), float(chances[s]), (forward_s[s], backward_s[s])
            )
            for s in numbers
        ]

    def _stage(
        self,
        choice: Choice,
        stage: int,
        spans: Sequence[tuple[int, int]],
        memory: MemoryBytes,
        chance: float,
        passes_s: tuple[float, float],
    ) -> Stage:
        table = self.tables.by_setting[choice.layout.setting]
        present = choice.placement.has_type[stage]
        return Stage(
            chunks=tuple(_chunk(a, b, table) for a, b in spans),
            devices=tuple(choice.placement.devices[stage].ravel().tolist()),
            device_type="+".join(compress(table.device_types, present)),
            forward_s=passes_s[0],
            backward_s=passes_s[1],
            memory_bytes=memory,
            oom_probability=chance,
            fits=chance < FITS_BELOW,
            measured_fraction=_measured_share(table, spans, present),
        )

    def _memory(
        self, choice: Choice, parts: Float[np.ndarray, " memory_parts"], stage: int
    ) -> MemoryBytes:
        named = {name: float(size) for name, size in zip(MEMORY_PARTS, parts, strict=True)}
        capacity = float(choice.placement.capacity_bytes[stage])
        return MemoryBytes(**named, total=sum(named.values()), capacity=capacity)

    def _cost(
        self, choice: Choice, costs: Costs, row: int, table: UnitTable, measured: float
    ) -> Cost:
        seconds = (self._factor * costs.breakdown_s[row]).tolist()
        parts = dict(zip(BREAKDOWN_PARTS, seconds, strict=True))
        step_s = sum(parts.values())
        stack = self.inputs.stack
        inputs = self.inputs
        reach = reach_of(
            inputs.model, inputs.cluster, choice.layout, inputs.workload, stack.fitted_spans
        )
        error = step_time_error_fraction(stack, reach, measured)
        flops = total_flops(table, choice.num_micro_batches, choice.layout.data_parallel)
        peak = self._peak_flops_per_s(choice)
        return Cost(
            step_time_s=step_s,
            step_time_low_s=step_s / (1.0 + error),
            step_time_high_s=step_s * (1.0 + error),
            tokens_per_s=self.inputs.workload.tokens / step_s,
            mfu_fraction=flops / step_s / peak if peak and flops > 0 else None,  # NaN: unknown
            bubble_fraction=parts["pipeline_bubble"] / step_s,
            breakdown_s=Breakdown(**parts),
        )

    def _peak_flops_per_s(self, choice: Choice) -> float | None:
        """Returns the datasheet rate of all devices of the plan; None where one is unknown."""
        cluster, precision = self.inputs.cluster, self.inputs.workload.precision
        rates = [
            cluster.device_types[n].peak_flops_per_s.get(precision) for n in cluster.used_types
        ]
        used = np.bincount(
            self.inputs.topology.device_type[choice.placement.devices.ravel()],
            minlength=len(rates),
        )
        known = [rate for rate, count in zip(rates, used, strict=True) if count]
        if any(rate is None for rate in known):
            return None
        return float(sum(n * (rate or 0.0) for n, rate in zip(used, rates, strict=True)))

    @staticmethod
    def _measured_fraction(stages: Sequence[Stage]) -> float:
        """Returns the measured share of all stages' time."""
        busy = [(s.forward_s or 0.0) + (s.backward_s or 0.0) for s in stages]
        shares = [s.measured_fraction or 0.0 for s in stages]
        total = sum(busy)
        return sum(b * m for b, m in zip(busy, shares, strict=True)) / total if total else 0.0


def _provenance(measured: float) -> dict[str, float]:
    return {"measured": measured, "analytic": 1.0 - measured}


def _chunk(first: int, end: int, table: UnitTable) -> Chunk:
    """Returns units `first` to `end` as decoder layers and ends."""
    if not table.has_ends:
        return Chunk(first_layer=first, num_layers=end - first)
    last = table.num_units - 1
    layers = (max(first, 1), min(end, last))
    return Chunk(
        first_layer=min(layers[0] - 1, last - 1),
        num_layers=max(layers[1] - layers[0], 0),
        embedding=first == 0 and end > first,
        head=end == last + 1,
    )


def _measured_share(
    table: UnitTable, spans: Sequence[tuple[int, int]], present: Bool[np.ndarray, " device_types"]
) -> float:
    if not table.measured_s.any():
        return 0.0
    inside = np.zeros(table.num_units, dtype=bool)
    for first, end in spans:
        inside[first:end] = True
    measured = table.measured_s[present][:, inside].sum()
    if measured <= 0:
        return 0.0
    total = table.compute_s.sum(axis=0)[present][:, inside].sum()
    return float(min(measured / total, 1.0))
