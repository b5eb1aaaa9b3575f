"""What the rules look at: the figures of one problem, read once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from apss_jax.legality.domains import (
    Domains,
    domain_types_of,
    domains_of,
    tensor_groups,
)
from apss_jax.legality.frameworks import Family, family_of
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp, StateSpace
from apss_jax.schema.model import Model
from apss_jax.schema.stack import Stack
from apss_jax.schema.workload import Workload

Counts = tuple[tuple[str, int], ...]  # (what is counted, how many), each pair once
# Their scans run over the whole sequence on one device; splitting them needs another algorithm.
UNSPLIT_SEQUENCE_KINDS = ("linear_attention", "state_space")


@dataclass(frozen=True)
class Facts:
    """The figures of one problem that decide what is legal."""

    num_devices: int
    domains: Domains
    device_types: tuple[str, ...]
    domain_types: tuple[int, ...]  # of each domain, an index into device_types
    largest_memory_bytes: int  # of one device, the largest type
    smallest_memory_bytes: int
    num_layers: int
    has_ends: bool  # whether embedding and head can be cut off, as they can unless it is a table
    heads: Counts  # must be divided by the tensor degree
    kv_heads: Counts  # the tensor degree may also be a multiple: each head is then held by several
    widths: Counts  # of feed-forward parts, experts included
    num_experts: tuple[int, ...]
    unsplit_kinds: tuple[str, ...]  # layers that context parallelism cannot split
    num_positions: int  # learned ones; 0 where positions are computed
    table_degrees: tuple[int, ...] | None  # tensor degrees that a table of layers was measured at
    global_batch: int
    seq_len: int
    precision: str
    types_without_precision: tuple[str, ...]
    stack: str
    family: Family
    flash_attention: bool

    @property
    def num_units(self) -> int:
        """Returns how many pieces a pipeline may be cut into."""
        return self.num_layers + (2 if self.has_ends else 0)

    @property
    def is_table(self) -> bool:
        """Returns whether the model is a table of measured layers."""
        return self.table_degrees is not None

    @cached_property
    def groups_by_degree(self) -> Int[np.ndarray, " batch"]:
        """Returns how many tensor groups of 0 (none), 1, 2, ... devices fit."""
        fitting = tensor_groups(self.domains, np.arange(1, self.num_devices + 1))
        return np.concatenate([[0], fitting])

    def groups_of(self, degrees: Int[np.ndarray, " batch"]) -> Int[np.ndarray, " batch"]:
        """Returns how many tensor groups of each degree fit; none of more devices than exist."""
        known = np.clip(degrees, 0, self.num_devices)
        return np.where(degrees > self.num_devices, 0, self.groups_by_degree[known])


def facts_of(model: Model, cluster: ClusterProfile, workload: Workload, stack: Stack) -> Facts:
    """Returns the facts of one problem."""
    layers = tuple(dict.fromkeys(run.layer for run in model.layers))
    kinds = {layer.mixer.kind for layer in layers if layer.mixer}
    types = cluster.used_types
    return Facts(
        num_devices=cluster.num_devices,
        domains=domains_of(cluster),
        device_types=types,
        domain_types=domain_types_of(cluster),
        largest_memory_bytes=max(cluster.device_types[name].memory_bytes for name in types),
        smallest_memory_bytes=min(cluster.device_types[name].memory_bytes for name in types),
        num_layers=model.num_layers,
        has_ends=model.table is None,
        heads=_distinct(pair for layer in layers for pair in _heads(layer)),
        kv_heads=_distinct(pair for layer in layers for pair in _kv_heads(layer)),
        widths=_distinct(pair for layer in layers for pair in _widths(layer)),
        num_experts=tuple(sorted({n for layer in layers for n in _experts(layer)})),
        unsplit_kinds=tuple(kind for kind in UNSPLIT_SEQUENCE_KINDS if kind in kinds),
        num_positions=model.embedding.num_positions if model.embedding else 0,
        table_degrees=_table_degrees(model, types),
        global_batch=workload.global_batch,
        seq_len=workload.seq_len,
        precision=workload.precision,
        types_without_precision=_types_without(cluster, workload, model),
        stack=stack.name,
        family=family_of(stack.name),
        flash_attention=stack.flash_attention,
    )


def _distinct(pairs: Iterator[tuple[str, int]]) -> Counts:
    return tuple(dict.fromkeys(pairs))


def _attentions(layer: Layer) -> Iterator[Attention]:
    for part in (layer.mixer, layer.cross_attention):
        if isinstance(part, Attention):
            yield part


def _heads(layer: Layer) -> Iterator[tuple[str, int]]:
    for part in (layer.mixer, layer.cross_attention):
        if part is None:
            continue
        heads, groups = part.tensor_divisor
        yield f"{part.kind.replace('_', ' ')} heads", heads
        if part.kind in UNSPLIT_SEQUENCE_KINDS:
            # Megatron's MambaMixer and GatedDeltaNet divide these and never repeat them.
            yield "state-space groups" if isinstance(part, StateSpace) else "key heads", groups


def _kv_heads(layer: Layer) -> Iterator[tuple[str, int]]:
    for part in _attentions(layer):
        if part.num_kv_heads != part.num_heads:
            yield "key/value heads", part.num_kv_heads


def _widths(layer: Layer) -> Iterator[tuple[str, int]]:
    part = layer.feed_forward
    dense = part.parallel_mlp if isinstance(part, MoeMlp) else part
    if isinstance(dense, DenseMlp):
        yield "feed-forward width", dense.intermediate_size
    if isinstance(part, MoeMlp):
        yield "expert width", part.expert_intermediate_size
        if part.shared_intermediate_size:
            yield "shared expert width", part.shared_intermediate_size


def _experts(layer: Layer) -> Iterator[int]:
    if isinstance(layer.feed_forward, MoeMlp):
        yield layer.feed_forward.num_experts


def _table_degrees(model: Model, types: tuple[str, ...]) -> tuple[int, ...] | None:
    if model.table is None:
        return None
    measured = [
        {int(degree) for degree in row.forward_s.get(name, {})}
        for row in model.table.rows
        for name in types
    ]
    return tuple(sorted(set.intersection(*measured)))


def _types_without(cluster: ClusterProfile, workload: Workload, model: Model) -> tuple[str, ...]:
    if model.table is not None:
        return ()  # its times are given, so no kernel is chosen by precision
    rates = {name: cluster.device_types[name].peak_flops_per_s for name in cluster.used_types}
    return tuple(name for name, peaks in rates.items() if workload.precision not in peaks)
