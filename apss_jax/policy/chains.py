"""Problems as the network sees them: padded to few sizes, with windows of possible cuts.

A piece ends somewhere in a *window* of neighbouring places; the first piece starts at 0 and the
last one ends after the last layer. Times are relative to the least limit on the time of a piece
that any partition keeps to, gradient work likewise, so that neither units nor sizes matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from apss_jax.partitioning.instance import MEMORY_SLACK_FRACTION
from apss_jax.partitioning.pipeline import PipelineInstance

Size = tuple[int, int, int]
"""Pieces, places of a window and ceilings."""

SIZES: Final[tuple[Size, ...]] = ((4, 32, 32), (16, 24, 8), (32, 32, 8), (64, 24, 6))
"""What programs are compiled for; few pieces leave time for many ceilings."""

# The first ceiling is the least limit and room for 32-bit sums; those after it lie closer where
# partitions are better, and above the last but one all are alike, worth as much as at the last.
_LOWEST, _WIDEST, _LAST = 5e-4, 0.9, 1.6

# A layer that needs more than this share of a piece's memory does not fit it, however much more.
_SHARE_CEILING = 2.0


class Chain(NamedTuple):
    """One problem, or many with a leading axis: numpy on the way in, traced in the network."""

    windows: Float32[Any, "*batch stages _ window"]
    """Time and gradient work up to where a piece may end and may start, and boundary costs."""
    until: Int32[Any, "*batch stages window"]
    """The last place where the piece may end, by memory, if it starts at a place of its window."""
    origin: Int32[Any, "*batch stages"]
    """The offset of a window's first place."""
    reach: Int32[Any, "*batch levels 2 stages"]
    """The first and last offset where a piece can end within each level of limits."""
    reach_times: Float32[Any, "*batch levels 2 stages"]
    """How far those are from the centre of the window, as time on the piece."""
    time: Float32[Any, "*batch stages"]
    """The whole model on the piece."""
    gradient: Float32[Any, "*batch stages"]
    """Gradient work of the whole model on the piece, relative to the least time limit."""
    memory: Float32[Any, "*batch stages"]
    """The whole model's share of the piece's capacity."""
    forward_fraction: Float32[Any, "*batch stages"]
    """The forward share of the time."""
    held: Float32[Any, "*batch stages"]
    """Micro-batches in flight."""
    reference: Int32[Any, "*batch stages"]
    """Where the pieces of another solution end; -1 where none is given."""
    gradient_limit: Float32[Any, "*batch"]
    """The least limit on gradient work, relative to the least time limit."""
    memory_slowdown: Float32[Any, "*batch"]
    """The least time limit relative to the one without memory."""
    blocking_fraction: Float32[Any, "*batch"]
    """The share of a transfer in which its sender waits."""
    num_layers: Int32[Any, "*batch"]
    num_pieces: Int32[Any, "*batch"]
    num_stages: Int32[Any, "*batch"]
    num_micro_batches: Int32[Any, "*batch"]
    ceilings: Float32[Any, "*batch ceilings"]
    """Limits on the time of the slowest piece, above the least limit, that are told apart."""
    is_simulated: Bool[Any, "*batch"]
    """Whether the step is scored by following its schedule."""


def size_for(pieces: int) -> Size:
    """Returns the padded size of a problem of some pieces; raises ValueError beyond the largest."""
    for size in SIZES:
        if pieces <= size[0]:
            return size
    raise ValueError(f"{pieces} pieces; the network takes at most {SIZES[-1][0]}")


def ceilings_of(count: int) -> Float32[np.ndarray, "ceilings"]:
    """Returns so many limits on the slowest piece, as excess over the least limit of all."""
    inner = _WIDEST * (np.arange(1, count - 1) / max(count - 2, 1)) ** 2
    return np.array([_LOWEST, *inner, _LAST], np.float32)


@dataclass(frozen=True, eq=False)
class Subject:
    """One problem in the form that windows are made of."""

    tables: Float64[np.ndarray, "_ stages offsets"]
    """Prefix sums over layers of what each piece takes; see `reach`."""
    held: Int64[np.ndarray, "stages"]
    forward_fraction: Float64[np.ndarray, "stages"] | float
    num_stages: int
    num_micro_batches: int
    blocking_fraction: float = 0.0


def subject_of(instance: PipelineInstance) -> Subject:
    """Returns a pipeline in the form that windows are made of."""
    forward_s = instance.forward_s.sum(axis=1)
    whole_s = np.maximum(forward_s + instance.backward_s.sum(axis=1), 1e-30)
    return Subject(
        tables=_tables(instance),
        held=instance.in_flight,
        forward_fraction=forward_s / whole_s,
        num_stages=instance.num_stages,
        num_micro_batches=instance.num_micro_batches,
        blocking_fraction=instance.blocking_fraction,
    )


def timing_subjects(
    layer_cost_s: Float64[np.ndarray, "batch layers"],
    boundary_cost_s: Float64[np.ndarray, "batch boundaries cuts"],
    num_micro_batches: int,
) -> list[Subject]:
    """Returns problems of time alone on equal stages: no memory limits, no gradients."""
    from apss_jax.policy import reach

    batch, layers = layer_cost_s.shape
    stages = boundary_cost_s.shape[2] + 1
    tables = np.zeros((batch, reach.NUM_TABLES, stages, layers + 1))
    tables[:, reach.TIME, :, 1:] = np.cumsum(layer_cost_s, axis=1)[:, None]
    tables[:, reach.ENDING, :-1, 1:-1] = boundary_cost_s.swapaxes(1, 2)
    held = np.ones(stages, np.int64)
    return [Subject(rows, held, 1 / 3, stages, num_micro_batches) for rows in tables]


def chains_of(
    instances: Sequence[PipelineInstance],
    *,
    is_simulated: bool,
    references: Sequence[Any] | None = None,
    size: Size | None = None,
) -> tuple[Chain, Bool[np.ndarray, "batch"]]:
    """Returns the problems in one size, and which of them have a partition that fits the memory.

    A problem without one is left blank. `references` are cuts, or None, for each problem.
    """
    subjects = [subject_of(instance) for instance in instances]
    chain, is_feasible = chains_of_subjects(subjects, is_simulated=is_simulated, size=size)
    for row, cuts in enumerate(references or ()):
        if cuts is not None and is_feasible[row]:
            ends = np.append(np.asarray(cuts) + 1, instances[row].num_layers)
            chain.reference[row, : len(ends)] = ends
    return chain, is_feasible


def chains_of_subjects(
    subjects: Sequence[Subject], *, is_simulated: bool, size: Size | None = None
) -> tuple[Chain, Bool[np.ndarray, "batch"]]:
    """Returns the same from the form that windows are made of."""
    from apss_jax.policy import reach

    pieces, window, ceilings = size or size_for(
        max(subject.tables.shape[1] for subject in subjects)
    )
    chain = _blank(len(subjects), (pieces, window, ceilings))
    is_feasible = np.zeros(len(subjects), bool)
    limits, ends = np.empty(3), np.empty(pieces + 1, np.int64)
    least = np.zeros((len(subjects), reach.NUM_LEAST))
    for row, subject in enumerate(subjects):
        sizes = np.array([subject.tables.shape[1], subject.tables.shape[2] - 1])
        is_feasible[row] = reach.prepare(
            *(subject.tables, sizes, limits, ends, least[row]),
            *(chain.origin[row], chain.reach[row], chain.reach_times[row]),
            *(chain.windows[row], chain.until[row]),
        )
        if is_feasible[row]:
            _describe(chain, row, subject, least[row, reach.LEAST_TIME] or 1.0)
    found = least[is_feasible]
    unit = np.where(found[:, reach.LEAST_TIME] > 0, found[:, reach.LEAST_TIME], 1.0)
    free = found[:, reach.LEAST_TIME_UNLIMITED]
    chain.gradient_limit[is_feasible] = found[:, reach.LEAST_GRADIENT] / unit
    chain.memory_slowdown[is_feasible] = unit / np.where(free > 0, free, 1.0)
    chain.is_simulated[:] = is_simulated
    return chain, is_feasible


def _blank(batch: int, size: Size) -> Chain:
    from apss_jax.policy import reach

    pieces, window, ceilings = size
    one = Chain(
        windows=np.zeros((batch, pieces, reach.NUM_WINDOWS, window), np.float32),
        until=np.zeros((batch, pieces, window), np.int32),
        origin=np.zeros((batch, pieces), np.int32),
        reach=np.zeros((batch, reach.NUM_LEVELS, 2, pieces), np.int32),
        reach_times=np.zeros((batch, reach.NUM_LEVELS, 2, pieces), np.float32),
        **{
            name: np.zeros((batch, pieces), np.float32)
            for name in ("time", "gradient", "memory", "forward_fraction", "held")
        },
        reference=np.full((batch, pieces), -1, np.int32),
        gradient_limit=np.zeros(batch, np.float32),
        memory_slowdown=np.ones(batch, np.float32),
        blocking_fraction=np.zeros(batch, np.float32),
        **{
            name: np.ones(batch, np.int32)
            for name in ("num_layers", "num_pieces", "num_stages", "num_micro_batches")
        },
        ceilings=np.tile(ceilings_of(ceilings), (batch, 1)),
        is_simulated=np.zeros(batch, bool),
    )
    return one


def _describe(chain: Chain, row: int, subject: Subject, unit: float) -> None:
    """Writes the figures of a problem that need no search."""
    from apss_jax.policy import reach

    pieces, offsets = subject.tables.shape[1:]
    used, whole = slice(pieces), subject.tables[:, :, -1]
    chain.time[row, used] = whole[reach.TIME] / unit
    chain.gradient[row, used] = whole[reach.GRADIENT] / unit
    chain.memory[row, used] = whole[reach.MEMORY]
    chain.forward_fraction[row, used] = subject.forward_fraction
    chain.held[row, used] = subject.held
    chain.blocking_fraction[row] = subject.blocking_fraction
    chain.num_layers[row] = offsets - 1
    chain.num_pieces[row] = pieces
    chain.num_stages[row] = subject.num_stages
    chain.num_micro_batches[row] = subject.num_micro_batches


def _tables(instance: PipelineInstance) -> Float64[np.ndarray, "_ stages offsets"]:
    """Returns prefix sums over layers of what a piece takes, and the cost of each ending."""
    from apss_jax.policy import reach

    shape = (reach.NUM_TABLES, instance.num_pieces, instance.num_layers + 1)
    tables = np.zeros(shape)
    np.cumsum(instance.forward_s + instance.backward_s, axis=1, out=tables[reach.TIME, :, 1:])
    np.cumsum(instance.gradient_s, axis=1, out=tables[reach.GRADIENT, :, 1:])
    tables[reach.ENDING, :-1, 1:-1] = 2 * instance.transfer_s.T
    each = instance.capacity_bytes * (1 + MEMORY_SLACK_FRACTION) / instance.virtual_stages
    allowed = np.tile(each, instance.virtual_stages)[:, None]
    if np.isfinite(allowed).any():
        held = instance.held_bytes
        with np.errstate(divide="ignore", over="ignore"):
            shares = np.divide(held, allowed, out=np.zeros_like(held), where=held > 0)
        np.cumsum(np.minimum(shares, _SHARE_CEILING), axis=1, out=tables[reach.MEMORY, :, 1:])
    return tables
