"""Synthetic pipelines, drawn from a seed: what the network learns on and is measured by.

Times are in units of the time that a micro-batch would take on each stage if layers could be cut
anywhere, so that link and gradient costs mean the same at every size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float64, Int64

from apss_jax.cost.schedule import most_in_flight
from apss_jax.partitioning.pipeline import PipelineInstance
from apss_jax.training.layers import LayerCosts, draw_layers

Range = tuple[float, float]


@dataclass(frozen=True)
class Family:
    """What the problems of one kind have in common; a range is drawn from evenly, in logarithms."""

    layers: tuple[int, int] = (8, 64)
    stages: tuple[int, int] = (2, 16)
    virtual_stages: tuple[int, ...] = (1,)
    micro_batches: Range = (4.0, 128.0)
    micro_batches_per_stage: Range | None = None
    """Overrides `micro_batches` where it is given."""
    slowest: Range = (1.1, 4.5)
    """How much slower the slower of two device types is."""
    equal_share: float = 0.4
    """Share of problems whose stages are equally fast."""
    head: Range = (0.2, 12.0)
    """Time of the head in usual layers."""
    link: Range = (1e-3, 0.5)
    """Time of both messages over a usual boundary."""
    uneven_links: float = 0.5
    gradient: Range = (0.05, 5.0)
    with_gradient: float = 0.7
    tight_memory: float = 0.4
    is_original: bool = False
    """Costs as in the original paper: uniform from 0 to 1, a matrix of boundaries, no more."""
    is_simulated: bool = False
    """Whether solutions are scored by the schedule that is followed, not by the closed form."""


SIMULATED: Final[dict[str, Any]] = {
    "micro_batches_per_stage": (1.0, 4.0),
    "link": (0.01, 2.0),
    "uneven_links": 0.7,
    "gradient": (0.1, 20.0),
    "with_gradient": 0.8,
    "is_simulated": True,
}

# States of an average stage.
_STATE_BYTES = 1e10

FAMILIES: Final[dict[str, Family]] = {
    "original": Family(layers=(30, 30), stages=(2, 16), is_original=True),
    "closed": Family(),
    "closed_speeds": Family(slowest=(4.0, 4.0), equal_share=0.0),
    "closed_heads": Family(head=(8.0, 16.0)),
    "closed_large": Family(layers=(128, 128), stages=(32, 32)),
    "closed_long": Family(layers=(64, 160), stages=(2, 16)),
    "closed_wide": Family(layers=(32, 160), stages=(17, 32)),
    "closed_widest": Family(layers=(64, 160), stages=(33, 64)),
    "simulated": Family(**SIMULATED),
    "simulated_long": Family(**SIMULATED, layers=(64, 160), stages=(2, 16)),
    "simulated_wide": Family(**SIMULATED, layers=(32, 160), stages=(17, 32)),
    "simulated_widest": Family(**SIMULATED, layers=(64, 160), stages=(33, 64)),
    "interleaved": Family(**SIMULATED, layers=(24, 96), stages=(4, 8), virtual_stages=(2, 4)),
    "interleaved_small": Family(**SIMULATED, layers=(8, 64), stages=(2, 4), virtual_stages=(2, 4)),
    "closed_few": Family(stages=(2, 4)),
    "simulated_few": Family(**SIMULATED, stages=(2, 4)),
    "original_few": Family(layers=(30, 30), stages=(2, 4), is_original=True),
    "tight": Family(tight_memory=1.0),
}


def draw_many(family: str, count: int, seed: int) -> Iterator[PipelineInstance]:
    """Yields problems of a family; the same ones for the same seed, however many are taken."""
    for number in range(count):
        key = (seed, number, sorted(FAMILIES).index(family))
        yield draw(FAMILIES[family], np.random.default_rng(key))


def draw(family: Family, rng: np.random.Generator) -> PipelineInstance:
    """Returns one problem."""
    if family.is_original:
        return _draw_original(family, rng)
    stages, chunks, layers = _sizes(family, rng)
    costs = draw_layers(layers, stages * chunks, family.head, rng)
    slowness = _slowness(stages, family, rng)
    micro_batches = _micro_batches(family, stages, chunks, rng)
    unit = costs.time / costs.time.sum() * np.sum(1.0 / slowness)
    time_s = np.tile(slowness[:, None] * unit * _per_kind(costs, slowness, rng), (chunks, 1))
    forward = 1 / 3 if rng.random() < 0.6 else 0.25
    held = _held(stages, chunks, micro_batches)
    states, saved, capacity = _memory(costs, slowness, held, family, rng)
    return PipelineInstance(
        forward_s=forward * time_s,
        backward_s=(1 - forward) * time_s,
        transfer_s=_transfers(costs, slowness, chunks, family, rng),
        gradient_s=np.tile(_gradients(costs, stages, family, rng), (chunks, 1)),
        state_bytes=states,
        saved_bytes=saved,
        in_flight=held,
        capacity_bytes=capacity,
        num_micro_batches=micro_batches,
        virtual_stages=chunks,
        blocking_fraction=float(rng.random() * (family.is_simulated and rng.random() < 0.2)),
    )


def _draw_original(family: Family, rng: np.random.Generator) -> PipelineInstance:
    layers = int(rng.integers(family.layers[0], family.layers[1] + 1))
    stages = int(rng.integers(family.stages[0], family.stages[1] + 1))
    time_s = np.tile(rng.random(layers), (stages, 1))
    return PipelineInstance(
        forward_s=time_s / 3,
        backward_s=time_s * 2 / 3,
        transfer_s=rng.random((layers - 1, stages - 1)) / 2,
        gradient_s=np.zeros_like(time_s),
        state_bytes=np.zeros(layers),
        saved_bytes=np.zeros(layers),
        in_flight=np.ones(stages, np.int64),
        capacity_bytes=np.full(stages, np.inf),
        num_micro_batches=2,
    )


def _even_in_logs(rng: np.random.Generator, low_high: Range) -> float:
    return float(np.exp(rng.uniform(*np.log(low_high))))


def _sizes(family: Family, rng: np.random.Generator) -> tuple[int, int, int]:
    """Returns stages, chunks and layers; there are at least one and a half layers for a piece."""
    chunks = int(rng.choice(family.virtual_stages))
    stages = int(rng.integers(family.stages[0], family.stages[1] + 1))
    least = max(family.layers[0], int(np.ceil(1.5 * stages * chunks)))
    most = max(least, family.layers[1])
    return stages, chunks, min(most, int(_even_in_logs(rng, (float(least), most + 0.99))))


def _micro_batches(family: Family, stages: int, chunks: int, rng: np.random.Generator) -> int:
    if family.micro_batches_per_stage is None:
        count = _even_in_logs(rng, family.micro_batches)
    else:
        count = min(128.0, stages * _even_in_logs(rng, family.micro_batches_per_stage))
    if chunks == 1:
        return max(2, round(count))
    return stages * max(1, round(count / stages))


def _slowness(stages: int, family: Family, rng: np.random.Generator) -> Float64[np.ndarray, "_"]:
    """Returns how slow each stage is: all equal, two device types, or each on its own."""
    kind, slowness = rng.random(), np.ones(stages)
    if kind < family.equal_share:
        return slowness
    if kind < family.equal_share + 0.8 * (1 - family.equal_share):
        slow = int(rng.integers(1, stages)) if stages > 1 else 1
        place = rng.integers(3)
        chosen: Any = (slice(0, slow), slice(stages - slow, stages), rng.permutation(stages)[:slow])
        slowness[chosen[place]] = _even_in_logs(rng, family.slowest)
        return slowness
    return np.exp(rng.normal(0.0, 0.25, stages))


def _per_kind(
    costs: LayerCosts, slowness: Float64[np.ndarray, "stages"], rng: np.random.Generator
) -> Float64[np.ndarray, "stages layers"]:
    """Returns how much slower a type is at the model's ends than inside, in some problems."""
    factor = np.ones((len(slowness), len(costs.time)))
    if rng.random() < 0.3:
        ends = np.exp(
            rng.normal(0.0, 0.2, len(slowness))[np.unique(slowness, return_inverse=True)[1]]
        )
        factor[:, [0, -1]] = ends[:, None]
    return factor


def _transfers(
    costs: LayerCosts,
    slowness: Float64[np.ndarray, "stages"],
    chunks: int,
    family: Family,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "boundaries cuts"]:
    """Returns the time of one message: what is sent times the link, or, in some, any matrix."""
    stages = len(slowness)
    usual, slow = _even_in_logs(rng, family.link), _even_in_logs(rng, (2.0, 20.0))
    is_slow = np.zeros(stages, bool)
    if rng.random() < family.uneven_links:
        nodes = (np.arange(stages) + rng.integers(4)) % rng.choice([2, 4, 8]) == 0
        is_slow = nodes if rng.random() < 0.5 else rng.random(stages) < 0.3
    links = np.tile(np.where(is_slow, usual, usual / (slow if is_slow.any() else 1.0)), chunks)
    sent = costs.volume[:-1, None] * links[:-1] / 2
    if rng.random() < 0.1:
        sent = sent * rng.random(sent.shape) * 2
    return sent


def _gradients(
    costs: LayerCosts, stages: int, family: Family, rng: np.random.Generator
) -> Float64[np.ndarray, "stages layers"]:
    if rng.random() >= family.with_gradient:
        return np.zeros((stages, len(costs.time)))
    each = np.full(stages, _even_in_logs(rng, family.gradient) * stages)
    if rng.random() < 0.5:
        each *= np.where(rng.random(stages) < 0.4, rng.uniform(1, 4), 1.0)
    return each[:, None] * costs.parameters / costs.parameters.sum()


def _held(stages: int, chunks: int, micro_batches: int) -> Int64[np.ndarray, "pieces"]:
    name = "1f1b" if chunks == 1 else "interleaved_1f1b"
    return most_in_flight(name, stages, micro_batches, chunks).T.reshape(-1).astype(np.int64)


def _memory(
    costs: LayerCosts,
    slowness: Float64[np.ndarray, "stages"],
    held: Int64[np.ndarray, "pieces"],
    family: Family,
    rng: np.random.Generator,
) -> tuple[Any, Any, Any]:
    """Returns states, what is saved, and capacities: unlimited, or about what even times need."""
    stages, chunks = len(slowness), len(held) // len(slowness)
    states = _STATE_BYTES * costs.parameters / costs.parameters.sum() * len(held)
    saved = _STATE_BYTES * costs.activations / costs.activations.sum() * rng.uniform(0.1, 1.0)
    if rng.random() >= family.tight_memory:
        return states, saved, np.full(stages, np.inf)
    share = np.tile(1 / slowness, chunks)
    wanted = np.cumsum(share)[:-1] / share.sum()
    ends = np.searchsorted(np.cumsum(costs.time) / costs.time.sum(), wanted)
    starts = np.clip(np.concatenate([[0], ends + 1]), 0, len(states) - 1)
    need = np.add.reduceat(states, starts) + held * np.add.reduceat(saved, starts)
    each = need.reshape(chunks, stages).sum(axis=0)
    capacity = np.full(stages, each.max() * rng.uniform(0.8, 1.4))
    if rng.random() < 0.4:
        is_slow = slowness > np.median(slowness)
        capacity = np.maximum(capacity * np.where(is_slow, 0.6, 1.0), 0.85 * each)
    return states, saved, capacity
