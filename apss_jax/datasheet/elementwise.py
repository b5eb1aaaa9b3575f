"""Memory-bound work between products, and what the host's launches cost."""

from __future__ import annotations

from apss_jax.datasheet.grid import Grid
from apss_jax.datasheet.layer_facts import LayerFacts
from apss_jax.datasheet.matmul import TypeTimes
from apss_jax.datasheet.rates import Rates

NORM_PASSES = 2.0  # reads and writes the hidden vector
PART_PASSES = 3.5  # residual addition reads two and writes one; half a pass of dropout mask
# A norm out of single operations writes every intermediate in FP32: 18 passes of 16 bits by count.
# Published runs with and without the fused kernel (Hagemann et al. 2023, arXiv 2311.05610, A100)
# are fitted best by far more, at the upper end of what was tried.
UNFUSED_NORM_PASSES = 50.0
INTERMEDIATE_PASSES = 2.0  # written by one kernel, read by the next
ROUTING_PASSES = 4.0  # tokens are permuted before the experts and back after them

LAUNCHED_PARTS = 2  # in the layer whose launch time a stack states: attention and feed-forward
FLOOR_POWER = 6  # of the smooth maximum of device and host time


def elementwise_s(facts: LayerFacts, grid: Grid, rates: Rates) -> TypeTimes:
    """Returns the time of one forward pass through norms, activations, residuals and routing."""
    hidden = _hidden_passes(facts, rates) * facts.hidden_size
    hidden = (hidden + ROUTING_PASSES * facts.routed_width) / grid.sequence_divisor
    split = INTERMEDIATE_PASSES * facts.split_width / grid.tensor_parallel
    whole = INTERMEDIATE_PASSES * facts.whole_width
    moved_bytes = grid.value_bytes * grid.tokens * (hidden + split + whole)
    return moved_bytes * rates.elementwise_passes / rates.memory_bytes_per_s


def _hidden_passes(facts: LayerFacts, rates: Rates) -> float:
    norm = NORM_PASSES + (0.0 if rates.fused_norm else UNFUSED_NORM_PASSES)
    return norm * facts.num_norms + PART_PASSES * facts.num_parts


def floored_s(device_s: TypeTimes, host_s: float) -> TypeTimes:
    """Returns the smooth maximum of what the device computes and what the host launches."""
    if host_s == 0:
        return device_s
    # Scaled by the host's time, or the sixth power of a microsecond would lose its digits.
    return host_s * (1.0 + (device_s / host_s) ** FLOOR_POWER) ** (1.0 / FLOOR_POWER)


def launch_s(facts: LayerFacts, rates: Rates) -> float:
    """Returns the host's time to launch one forward pass."""
    return rates.cpu_forward_s * facts.num_parts / LAUNCHED_PARTS
