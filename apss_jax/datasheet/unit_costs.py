"""What one kind of unit costs under every setting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apss_jax.datasheet.activations import kept
from apss_jax.datasheet.attention import mixing_flops, mixing_s
from apss_jax.datasheet.collectives import CommValues, layer_traffic
from apss_jax.datasheet.elementwise import elementwise_s, floored_s, launch_s
from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.layer_facts import LayerFacts
from apss_jax.datasheet.matmul import TypeTimes, products_s
from apss_jax.datasheet.parameters import Held, held
from apss_jax.datasheet.rates import Rates

BACKWARD_PRODUCTS = 2.0  # gradients of the input and of the weight
PASSES_OF_TRAINING = 1.0 + BACKWARD_PRODUCTS


@dataclass(frozen=True)
class Times:
    """Compute of one pass each; the backward pass without what recomputation repeats."""

    forward_s: TypeTimes
    backward_s: TypeTimes
    recompute_s: TypeTimes

    def plus(self, other: Times, repeat: float) -> Times:
        """Returns these and another unit's times, the latter `repeat` times over."""
        return Times(
            self.forward_s + repeat * other.forward_s,
            self.backward_s + repeat * other.backward_s,
            self.recompute_s + repeat * other.recompute_s,
        )


@dataclass(frozen=True)
class UnitCosts:
    """Costs of one kind of unit for one micro-batch."""

    times: Times
    comm_bytes: CommValues
    comm_calls: CommValues
    held: Held
    saved_bytes: SettingColumn
    working_bytes: SettingColumn
    model_flops: SettingColumn

    def plus(self, other: UnitCosts, repeat: float) -> UnitCosts:
        """Returns these and another unit's costs, the latter `repeat` times over."""
        return UnitCosts(
            times=self.times.plus(other.times, repeat),
            comm_bytes=self.comm_bytes + repeat * other.comm_bytes,
            comm_calls=self.comm_calls + repeat * other.comm_calls,
            held=self.held.plus(other.held.times(repeat)),
            saved_bytes=self.saved_bytes + repeat * other.saved_bytes,
            working_bytes=np.maximum(self.working_bytes, other.working_bytes),
            model_flops=self.model_flops + repeat * other.model_flops,
        )


def layer_costs(facts: LayerFacts, grid: Grid, rates: Rates) -> UnitCosts:
    """Returns the costs of a layer."""
    comm_bytes, comm_calls = layer_traffic(facts, grid)
    # Memory is one figure for all device types; the type that keeps most decides.
    flash = bool(rates.has_flash.all())
    activations = kept(facts, grid, flash=flash, fused_norm=rates.fused_norm)
    return UnitCosts(
        times=layer_times(facts, grid, rates),
        comm_bytes=comm_bytes,
        comm_calls=comm_calls,
        held=held(facts.weights, grid),
        saved_bytes=rates.activation_factor * activations.saved_bytes,
        working_bytes=rates.activation_factor * activations.working_bytes,
        model_flops=layer_flops(facts, grid),
    )


def layer_times(facts: LayerFacts, grid: Grid, rates: Rates) -> Times:
    """Returns the compute times of a layer, never below what the host needs to launch it."""
    linear_s = products_s(facts.products, grid.tokens, grid, rates)
    linear_s = linear_s + elementwise_s(facts, grid, rates)
    mixes = [mixing_s(mixer, grid, rates) for mixer in facts.mixers]
    mixing_forward_s = sum((m.forward_s for m in mixes), np.zeros_like(linear_s))
    mixing_backward_s = sum((m.backward_s for m in mixes), np.zeros_like(linear_s))
    host_s = launch_s(facts, rates)
    forward_s = floored_s(linear_s + mixing_forward_s, host_s)
    backward_s = BACKWARD_PRODUCTS * linear_s + mixing_backward_s
    return Times(
        forward_s=forward_s,
        backward_s=floored_s(backward_s, BACKWARD_PRODUCTS * host_s),
        recompute_s=grid.recomputes_all * forward_s + grid.recomputes_scores * mixing_forward_s,
    )


def layer_flops(facts: LayerFacts, grid: Grid) -> SettingColumn:
    """Returns the model's operations, forward and backward, over all tensor and context ranks."""
    per_token = sum(product.flops_per_token for product in facts.products)
    mixing = sum((mixing_flops(m, grid.seq_len) for m in facts.mixers), np.zeros_like(grid.seq_len))
    return PASSES_OF_TRAINING * grid.all_tokens * (per_token + mixing)
