"""Synthetic clusters of mixed devices with a model to train on them, drawn from a seed.

Figures are rough on purpose: what a device reaches, its memory, the links in and between nodes.
They only have to span what real clusters look like, relative to each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int64

from apss_jax.partitioning.joint import JointInstance


@dataclass(frozen=True)
class DeviceKind:
    """One type of device in a synthetic cluster."""

    flops_per_s: float
    memory_bytes: float
    node_bytes_per_s: float
    network_bits_per_s: tuple[float, ...]


def _kind(teraflops: int, gigabytes: int, node: int, *gigabits: int) -> DeviceKind:
    rates = tuple(1e9 * rate for rate in gigabits)
    return DeviceKind(1e12 * teraflops, 1e9 * gigabytes, 1e9 * node, rates)


KINDS: Final = {
    "T4": _kind(22, 16, 10, 10, 25, 50),
    "V100": _kind(50, 16, 120, 10, 25, 100),
    "V100-32": _kind(50, 32, 120, 25, 100),
    "A10": _kind(55, 24, 18, 10, 25, 50),
    "L4": _kind(45, 24, 14, 10, 25, 50),
    "A40": _kind(75, 48, 25, 25, 100),
    "L40S": _kind(140, 48, 22, 25, 100, 200),
    "A100": _kind(150, 40, 230, 50, 100, 200),
    "A100-80": _kind(150, 80, 230, 100, 200),
    "H100": _kind(380, 80, 380, 200, 400),
    "H200": _kind(390, 141, 380, 400),
}

Mix = tuple[str, ...]
MIXES: Final[tuple[Mix, ...]] = (
    *(("V100", "T4"), ("V100-32", "T4"), ("A100", "V100"), ("A100-80", "V100-32")),
    *(("A100", "A10"), ("H100", "A100-80"), ("H100", "A100-80", "L40S"), ("H100", "H200")),
    *(("A100", "A100-80"), ("V100", "A10", "T4"), ("L40S", "L4", "A10")),
    *(("H200", "H100", "A100-80", "L40S"), ("A100-80", "A40", "V100-32")),
    *(("A100-80", "A100", "A40", "V100-32"), ("V100", "V100-32", "T4")),
)

# Hidden size, layers, tokens of a sequence, vocabulary.
_MODELS = (
    *((1024, 24, 1024, 50257), (1600, 48, 1024, 50257), (2560, 32, 2048, 50257)),
    *((4096, 32, 2048, 50257), (4096, 32, 4096, 32000), (5120, 40, 4096, 32000)),
    *((4096, 32, 8192, 128256), (6656, 60, 2048, 32000), (5120, 40, 2048, 50257)),
    *((8192, 80, 4096, 32000), (8192, 80, 8192, 128256), (12288, 96, 2048, 50257)),
)
_GPUS_PER_NODE = 8
_RESERVED_BYTES, _USABLE_FRACTION, _NETWORK_FRACTION = 1.5e9, 0.9, 0.8


@dataclass(frozen=True, eq=False)
class Placement:
    """A problem of order and cuts together."""

    instance: JointInstance
    given_order: Int64[np.ndarray, "stages"]
    """The devices in the order in which a host file would list them."""


@dataclass(frozen=True)
class _Group:
    """Devices of one type behind one kind of network."""

    kind: DeviceKind
    name: str
    network_bytes_per_s: float
    nodes: int


@dataclass(frozen=True)
class _Layout:
    """How a stage is made of devices, and what is kept and sent."""

    stages_of_node: int
    tensor_parallel: int
    data_parallel: int
    micro_batch: int
    is_recomputed: bool
    is_sharded: bool


def draw_placements(
    count: int, seed: int, *, stages: tuple[int, int], mixes: tuple[Mix, ...] = MIXES
) -> Iterator[Placement]:
    """Yields problems with some numbers of stages; the same ones for the same seed."""
    for number in range(count):
        yield draw_placement(np.random.default_rng((seed, number, *stages)), stages, mixes)


def draw_placement(
    rng: np.random.Generator, stages: tuple[int, int], mixes: tuple[Mix, ...] = MIXES
) -> Placement:
    """Returns one problem; every type of the cluster is used."""
    while True:
        count = int(rng.integers(stages[0], stages[1] + 1))
        layout = _layout(rng)
        groups = _groups(count, layout.stages_of_node, mixes[rng.integers(len(mixes))], rng)
        model = _model(count, layout, groups, rng) if groups else None
        if model is not None:
            return _placement(count, layout, groups, model, rng)


def _layout(rng: np.random.Generator) -> _Layout:
    stages_of_node = 1 if rng.random() < 0.7 else int(rng.choice([2, 4]))
    gpus = _GPUS_PER_NODE // stages_of_node
    tensor = int(rng.choice([size for size in (1, 2, 4, 8) if size <= gpus]))
    return _Layout(
        stages_of_node=stages_of_node,
        tensor_parallel=tensor,
        data_parallel=gpus // tensor,
        micro_batch=int(rng.choice([1, 2, 4, 8])),
        is_recomputed=bool(rng.random() < 0.4),
        is_sharded=bool(rng.random() < 0.5),
    )


def _groups(stages: int, stages_of_node: int, mix: Mix, rng: np.random.Generator) -> list[_Group]:
    """Returns the cluster's groups, at most four; nothing if there are too few nodes for all."""
    nodes = -(-stages // stages_of_node)
    if nodes < len(mix):
        return []
    counts = 1 + rng.multinomial(nodes - len(mix), rng.dirichlet(np.full(len(mix), 2.0)))
    groups = []
    for name, count in zip(mix, counts.tolist(), strict=True):
        kind = KINDS[name]
        rates = rng.permutation(kind.network_bits_per_s) / 8 * _NETWORK_FRACTION
        is_split = count > 1 and len(rates) > 1 and len(mix) <= 3 and rng.random() < 0.2
        first = int(rng.integers(1, count)) if is_split else count
        groups.append(_Group(kind, name, float(rates[0]), first))
        if is_split:
            groups.append(_Group(kind, name, float(rates[1]), count - first))
    return groups if len(groups) <= 4 else []


def _model(stages: int, layout: _Layout, groups: list[_Group], rng: np.random.Generator) -> Any:
    """Returns the model, of a few that are drawn, that fills the memory about as much as wanted."""
    wanted, best = rng.uniform(0.2, 0.95), None
    there = sum(
        (_USABLE_FRACTION * group.kind.memory_bytes - _RESERVED_BYTES)
        * (group.nodes * layout.stages_of_node)
        for group in groups
    )
    for _ in range(12):
        hidden, layers, tokens, words = _MODELS[rng.integers(len(_MODELS))]
        if layers < 1.5 * stages:
            continue
        state, saved = _held_bytes(hidden, layers, tokens, words, layout)
        need = state.sum() + saved.sum() * min(stages, 8) / 2
        away = abs(need / there - wanted)
        if need <= 1.1 * there and (best is None or away < best[0]):
            best = (away, (hidden, layers, tokens, words))
    return None if best is None else best[1]


def _held_bytes(
    hidden: int, layers: int, tokens: int, words: int, layout: _Layout
) -> tuple[Float64[np.ndarray, "layers"], Float64[np.ndarray, "layers"]]:
    """Returns states, and what a micro-batch leaves, of each layer on one device."""
    each = 4 + 12 / layout.data_parallel if layout.is_sharded else 16
    table, inner = words * hidden, 12 * hidden**2
    state = np.concatenate([[table], np.full(layers, inner), [table]]) * each
    sent = tokens * layout.micro_batch * hidden
    inside = 2 * sent if layout.is_recomputed else 34 * sent
    ends = (2 * sent, 5 * tokens * layout.micro_batch * words)
    saved = np.concatenate([[ends[0]], np.full(layers, inside), [ends[1]]])
    return state / layout.tensor_parallel, saved / layout.tensor_parallel


def _placement(
    stages: int, layout: _Layout, groups: list[_Group], model: Any, rng: np.random.Generator
) -> Placement:
    hidden, layers, tokens, words = model
    state, saved = _held_bytes(hidden, layers, tokens, words, layout)
    sent_bytes = 2.0 * tokens * layout.micro_batch * hidden
    forward_s = np.stack([_forward_s(group, layout, model) for group in groups])
    factor = 3.0 if layout.is_recomputed else 2.0
    counts = np.array([group.nodes * layout.stages_of_node for group in groups])
    per_byte, node_per_byte = _links(groups, layout, rng)
    most = float(np.clip(stages * np.exp(rng.uniform(np.log(0.75), np.log(8.0))), 2, 128))
    instance = JointInstance(
        type_forward_s=forward_s,
        type_backward_s=factor * forward_s,
        type_gradient_s=np.stack([_gradient_s(group, layout, state) for group in groups]),
        counts=counts,
        node_stages=np.full(len(groups), layout.stages_of_node),
        link_s_per_byte=per_byte,
        link_s_per_call=np.full(per_byte.shape, 1e-5),
        node_s_per_byte=node_per_byte,
        node_s_per_call=np.full(len(groups), 5e-6),
        boundary_bytes=np.full(layers + 1, sent_bytes),
        state_bytes=state,
        saved_bytes=saved,
        capacity_bytes=np.array(
            [_USABLE_FRACTION * group.kind.memory_bytes - _RESERVED_BYTES for group in groups]
        ),
        num_micro_batches=round(most),
        num_stages=stages,
    )
    return Placement(instance, _given_order(instance, layout.stages_of_node, rng))


def _forward_s(group: _Group, layout: _Layout, model: Any) -> Float64[np.ndarray, "layers"]:
    """Returns the time of each layer on a stage of a group, its tensor exchanges included."""
    hidden, layers, tokens, words = model
    samples = tokens * layout.micro_batch
    inner = (24 * hidden**2 + 4 * tokens * hidden) * samples
    flops = np.concatenate([[0.03 * inner], np.full(layers, inner), [2 * words * hidden * samples]])
    compute_s = flops / layout.tensor_parallel / group.kind.flops_per_s
    share = (layout.tensor_parallel - 1) / layout.tensor_parallel
    exchanged = 4 * share * 2.0 * samples * hidden / group.kind.node_bytes_per_s
    is_inner = np.concatenate([[0.0], np.ones(layers), [0.0]])
    return compute_s + is_inner * exchanged


def _gradient_s(
    group: _Group, layout: _Layout, state: Float64[np.ndarray, "layers"]
) -> Float64[np.ndarray, "layers"]:
    """Returns the time of each layer's gradient reduction within a node."""
    each = 4 + 12 / layout.data_parallel if layout.is_sharded else 16
    share = 2 * (layout.data_parallel - 1) / layout.data_parallel
    rate = group.kind.node_bytes_per_s / layout.tensor_parallel
    return share * 2.0 * state / each / rate


def _links(
    groups: list[_Group], layout: _Layout, rng: np.random.Generator
) -> tuple[Float64[np.ndarray, "device_types device_types"], Float64[np.ndarray, "device_types"]]:
    """Returns seconds per byte between stages of two groups, and within a node."""
    fabric = rng.choice([10e9, 25e9]) / 8 * _NETWORK_FRACTION if rng.random() < 0.3 else np.inf
    rates = np.array([group.network_bytes_per_s for group in groups])
    between = np.minimum(rates[:, None], rates[None])
    names = np.array([group.name for group in groups])
    between = np.where(names[:, None] == names, between, np.minimum(between, fabric))
    inside = np.array([group.kind.node_bytes_per_s for group in groups])
    return layout.data_parallel / between, layout.data_parallel / (inside * 2)


def _given_order(
    instance: JointInstance, stages_of_node: int, rng: np.random.Generator
) -> Int64[np.ndarray, "stages"]:
    """Returns nodes type by type in any order of types, or mixed, as host files list them."""
    types = rng.permutation(instance.num_types)
    nodes = np.repeat(types, instance.counts[types] // stages_of_node)
    if rng.random() < 0.4:
        nodes = rng.permutation(nodes)
    return np.repeat(nodes, stages_of_node)[: instance.num_stages].astype(np.int64)
