"""Memory-bound work between products, and the host's time to launch a layer."""

from __future__ import annotations

import numpy as np

from apss_jax.datasheet.grid import Grid
from apss_jax.datasheet.layer_facts import LayerFacts
from apss_jax.datasheet.matmul import TypeTimes
from apss_jax.datasheet.rates import Rates
from apss_jax.datasheet.work import BACKWARD_PRODUCTS

NORM_PASSES = 2.0  # reads and writes the hidden vector
PART_PASSES = 3.5  # residual addition reads two and writes one; half a pass of dropout mask
# A norm out of single operations writes every intermediate in FP32: 18 passes of 16 bits by count.
# Published runs with and without the fused kernel (Hagemann et al. 2023, arXiv 2311.05610, A100)
# are fitted best by far more, at the upper end of what was tried.
UNFUSED_NORM_PASSES = 50.0
INTERMEDIATE_PASSES = 2.0  # written by one kernel, read by the next

# A tensor rank of a pipeline costs the host 1.2 times as much in a group over two domains, 1.5
# times over four: about what small micro-batches of published runs show (nanotron on AWS p5).
SPANNED_POWER = 0.3

LAUNCHED_PARTS = 2  # in the layer whose launch time a stack states: attention and feed-forward


def elementwise_s(facts: LayerFacts, grid: Grid, rates: Rates) -> TypeTimes:
    """Returns the time of one forward pass through norms, activations, residuals and routing."""
    hidden = _hidden_passes(facts, rates) * facts.hidden_size
    routed = rates.routing_passes * facts.routed_width
    whole_casts, split_casts = (rates.cast_passes * w for w in facts.input_widths)
    branch = (hidden + routed + whole_casts) / grid.sequence_divisor
    split = (INTERMEDIATE_PASSES * facts.split_width + split_casts) / grid.tensor_parallel
    whole = INTERMEDIATE_PASSES * facts.whole_width
    moved_bytes = grid.value_bytes * grid.tokens * (branch + split + whole)
    return moved_bytes * rates.elementwise_passes / rates.memory_bytes_per_s


def _hidden_passes(facts: LayerFacts, rates: Rates) -> float:
    norm = NORM_PASSES + (0.0 if rates.fused_norm else UNFUSED_NORM_PASSES)
    return norm * facts.num_norms + PART_PASSES * facts.num_parts


def launch_s(facts: LayerFacts, grid: Grid, rates: Rates) -> TypeTimes:
    """Returns the host's time to launch one forward pass, a third of that of both passes.

    A layer of experts takes longer: it routes, and waits to learn how many tokens each expert has;
    nothing where its kernels are fused and the step is launched as a whole.
    """
    spanned = np.maximum(grid.pipelined_ranks / rates.domain_devices, 1.0)
    ranks = grid.pipelined_ranks * spanned**SPANNED_POWER
    pipelined_s = ranks * rates.tensor_pipeline_cpu_s / (1.0 + BACKWARD_PRODUCTS)
    layer_s = (rates.cpu_forward_s + pipelined_s) * facts.num_parts / LAUNCHED_PARTS
    if not facts.routed_width:
        return layer_s
    return np.where(rates.has_fused_experts, 0.0, layer_s + rates.expert_cpu_forward_s)
