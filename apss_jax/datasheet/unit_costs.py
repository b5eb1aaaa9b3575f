"""What one kind of unit costs under every setting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from apss_jax.datasheet.activations import kept
from apss_jax.datasheet.attention import mixing_flops, mixing_s
from apss_jax.datasheet.collectives import CommValues, layer_traffic
from apss_jax.datasheet.elementwise import elementwise_s, launch_s
from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.layer_facts import LayerFacts
from apss_jax.datasheet.matmul import TypeTimes, products_s
from apss_jax.datasheet.parameters import Held, held
from apss_jax.datasheet.rates import Rates
from apss_jax.datasheet.work import BACKWARD_PRODUCTS, Times, Work, times_of

PassFlags = Bool[np.ndarray, "settings passes device_types"]

PASSES_OF_TRAINING = 1.0 + BACKWARD_PRODUCTS


@dataclass(frozen=True)
class UnitCosts:
    """Costs of one kind of unit for one micro-batch."""

    work: Work
    is_layer: bool
    comm_bytes: CommValues
    comm_calls: CommValues
    held: Held
    saved_bytes: SettingColumn
    working_bytes: SettingColumn
    model_flops: SettingColumn
    is_measured: PassFlags | None = None  # None: nothing was

    def times(self, grid: Grid) -> Times:
        """Returns the compute times; recomputation leaves the ends of a model alone."""
        return times_of(self.work, grid, repeats_forward=self.is_layer)

    def measured_s(self, times: Times, grid: Grid) -> TypeTimes:
        """Returns the part of the times that was measured; repeated scores never are."""
        if self.is_measured is None:
            return np.zeros_like(times.forward_s)
        repeats = grid.recomputes_all if self.is_layer else 0.0
        forward_s = times.forward_s * self.is_measured[:, 0] * (1.0 + repeats)
        return forward_s + times.backward_s * self.is_measured[:, 1]

    def plus(self, other: UnitCosts, repeat: int, grid: Grid) -> UnitCosts:
        """Returns these and another unit's costs, the latter `repeat` times over."""
        return UnitCosts(
            work=self.work.plus(other.times(grid), repeat),
            is_layer=self.is_layer,
            comm_bytes=self.comm_bytes + repeat * other.comm_bytes,
            comm_calls=self.comm_calls + repeat * other.comm_calls,
            held=self.held.plus(other.held.times(repeat)),
            saved_bytes=self.saved_bytes + repeat * other.saved_bytes,
            working_bytes=np.maximum(self.working_bytes, other.working_bytes),
            model_flops=self.model_flops + repeat * other.model_flops,
            # One flag stands for both parts: where one of them was not measured, none counts as it.
            is_measured=_both(self.is_measured, other.is_measured),
        )


def _both(one: PassFlags | None, other: PassFlags | None) -> PassFlags | None:
    return None if one is None or other is None else one & other


def layer_costs(facts: LayerFacts, grid: Grid, rates: Rates) -> UnitCosts:
    """Returns the costs of a layer."""
    comm_bytes, comm_calls = layer_traffic(facts, grid, reduces_gate_apart=rates.reduces_gate_apart)
    # Memory is one figure for all device types; the type that keeps most decides.
    flash = bool(rates.has_flash.all())
    activations = kept(facts, grid, rates, flash=flash)
    return UnitCosts(
        work=layer_work(facts, grid, rates),
        is_layer=True,
        comm_bytes=comm_bytes,
        comm_calls=comm_calls,
        held=held(facts.weights, grid),
        saved_bytes=rates.activation_factor * activations.saved_bytes,
        working_bytes=rates.activation_factor * activations.working_bytes,
        model_flops=layer_flops(facts, grid),
    )


def layer_work(facts: LayerFacts, grid: Grid, rates: Rates) -> Work:
    """Returns what the device computes and the host launches for one layer."""
    product_s = products_s(facts.products, grid.tokens, grid, rates)
    linear_s = product_s + elementwise_s(facts, grid, rates)
    mixes = [mixing_s(mixer, grid, rates) for mixer in facts.mixers]
    scores_s = sum((m.forward_s for m in mixes), np.zeros_like(linear_s))
    scores_backward_s = sum((m.backward_s for m in mixes), np.zeros_like(linear_s))
    host_s = np.zeros_like(linear_s) + launch_s(facts, grid, rates)
    return Work(
        forward_s=linear_s + scores_s,
        backward_s=BACKWARD_PRODUCTS * linear_s + scores_backward_s,
        # torchtitan keeps attention's output and every second product's.
        selective_s=linear_s - product_s / 2 if rates.keeps_second_products else scores_s,
        host_forward_s=host_s,
        host_backward_s=BACKWARD_PRODUCTS * host_s,
        launch_power=rates.launch_power,
    )


def layer_flops(facts: LayerFacts, grid: Grid) -> SettingColumn:
    """Returns the model's operations, forward and backward, over all tensor and context ranks."""
    per_token = sum(product.flops_per_token for product in facts.products)
    mixing = sum((mixing_flops(m, grid.seq_len) for m in facts.mixers), np.zeros_like(grid.seq_len))
    return PASSES_OF_TRAINING * grid.all_tokens * (per_token + mixing)
