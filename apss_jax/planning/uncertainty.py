"""How far off a predicted step may be: the 80 % interval, wider for what was hardly ever timed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import expm1, hypot, log1p, log2

from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import Model
from apss_jax.schema.stack import Spans, Stack
from apss_jax.schema.workload import Workload

Sizes = dict[str, int]
"""Some of the sizes that `Spans` names."""


@dataclass(frozen=True)
class Reach:
    """What a plan has that runs with a measured step may not have had."""

    has_experts: bool
    domain_doublings: float  # log2 of the fast-link domains in use
    far_doublings: float  # beyond the sizes of the runs that the stack was fitted on, all together
    device_error_fraction: float  # of the least known device type
    device_types: tuple[str, ...] = ()  # in use; none: any
    fp8: bool = False  # products of layers


def reach_of(
    model: Model,
    cluster: ClusterProfile,
    layout: Layout,
    workload: Workload,
    spans: Spans,
) -> Reach:
    """Returns how far a plan on a cluster lies from the runs that its stack was fitted on."""
    rates = [cluster.device_types[name].rates for name in cluster.used_types]
    return Reach(
        has_experts=any(isinstance(run.layer.feed_forward, MoeMlp) for run in model.layers),
        domain_doublings=log2(max(cluster.num_domains, 1)),
        far_doublings=doublings_beyond(sizes_of(model, cluster, layout, workload.seq_len), spans),
        device_error_fraction=max(each.step_time_error_fraction for each in rates),
        device_types=cluster.used_types,
        fp8=workload.precision == "fp8",
    )


def sizes_of(model: Model, cluster: ClusterProfile, layout: Layout, seq_len: int) -> Sizes:
    """Returns the sizes in which a plan may lie far from others; a table has no hidden size."""
    sizes: Sizes = {
        "devices": cluster.num_devices,
        "seq_len": seq_len,
        "micro_batch": layout.micro_batch,
    }
    if model.hidden_size is not None:
        sizes["hidden_size"] = model.hidden_size
    return sizes


def spans_of(sizes: Iterable[Sizes]) -> Spans:
    """Returns the least and the largest of each size that any has."""
    spans: dict[str, tuple[int, int]] = {}
    for each in sizes:
        for name, size in each.items():
            least, largest = spans.get(name, (size, size))
            spans[name] = (min(least, size), max(largest, size))
    return Spans(**spans)


def ends_of(spans: Spans) -> tuple[Sizes, Sizes]:
    """Returns the least sizes and the largest."""
    known = {name: span for name, span in spans if span is not None}
    least = {name: span[0] for name, span in known.items()}
    return least, {name: span[1] for name, span in known.items()}


def doublings_beyond(sizes: Sizes, spans: Spans) -> float:
    """Returns by how many doublings sizes lie outside their spans, all sizes together."""
    least, largest = ends_of(spans)
    outside = 0.0
    for name in sorted(sizes.keys() & least.keys()):
        size = sizes[name]
        outside += max(0.0, log2(least[name] / size), log2(size / largest[name]))
    return outside


def step_time_error_fraction(stack: Stack, reach: Reach, measured_fraction: float) -> float:
    """Returns e such that the step is between 1 / (1 + e) and 1 + e of its prediction.

    That is to hold in four cases of five. Independent errors add up as squares of logarithms; the
    share of compute that was measured (`measured_fraction`) has the error of measured layers.
    """
    base = measured_fraction * stack.measured_error_fraction
    base += (1.0 - measured_fraction) * stack.error_fraction_on(reach.device_types, fp8=reach.fp8)
    return widened_error_fraction(
        base,
        stack.expert_error_fraction * reach.has_experts,
        expm1(reach.domain_doublings * log1p(stack.domain_error_fraction)),
        expm1(reach.far_doublings * log1p(stack.far_error_fraction)),
        reach.device_error_fraction * (1.0 - measured_fraction),
    )


def widened_error_fraction(*fractions: float) -> float:
    """Returns the error fraction of independent errors together."""
    return expm1(hypot(*(log1p(fraction) for fraction in fractions)))
