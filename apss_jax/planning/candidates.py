"""From a problem to the layouts that are worth costing, with how many were dropped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from apss_jax.legality.facts import Facts
from apss_jax.planning.enumeration import Pins, enumerate_layouts, layout_blocks
from apss_jax.planning.heuristics import BY_DEGREES, BY_FIGURES, Bounds, View, beaten, propose
from apss_jax.planning.memory_bounds import PerLayout
from apss_jax.schema.layout import Layouts

NEAREST: Final = 64  # layouts kept when nothing can fit: what a search reports as missing
MERGED_ROWS: Final = 200_000
SLACK: Final = 1.1  # on the step time that a plain partition surely reaches


@dataclass(frozen=True)
class Candidates:
    """Layouts to cost, how many legal ones there were, and how many were dropped why.

    No layout is faster than its bound; 0 where none is known.
    """

    layouts: Layouts
    bound_s: PerLayout
    num_legal: int
    dropped: dict[str, int]


def all_candidates(facts: Facts, pins: Pins | None = None) -> Candidates:
    """Returns every legal layout, as if no policy existed."""
    layouts = enumerate_layouts(facts, pins)
    return Candidates(layouts, np.zeros(len(layouts)), len(layouts), {})


def find_candidates(facts: Facts, bounds: Bounds, pins: Pins | None = None) -> Candidates:
    """Returns the layouts that the policy proposes.

    Blocks are pruned as they are generated, so that memory stays bounded: first by what degrees
    alone say, which most layouts do not survive, then several together by their figures. Where
    nothing can fit, the layouts that come nearest are kept, so that a search can say what is
    missing.
    """
    dropped: Counter[str] = Counter()
    kept = _Kept()
    legal = 0

    def spread_out() -> Iterator[Layouts]:
        nonlocal legal
        for block in layout_blocks(facts, pins):
            legal += len(block)
            proposed, counts = propose(bounds.look_at(block), pins or {}, BY_DEGREES)
            dropped.update(counts)
            yield proposed.layouts

    for block in _merged(spread_out()):
        view = bounds.look_at(block)
        proposed, counts = propose(view, pins or {}, BY_FIGURES)
        dropped.update(counts)
        kept.add(view, proposed)
    survivors, bound_s = kept.survivors(dropped)
    return Candidates(survivors, bound_s, legal, {name: n for name, n in dropped.items() if n})


def lightest_layouts(bounds: Bounds, pins: Pins, most: int) -> Layouts:
    """Returns the legal layouts whose fullest stage needs least at least, and may fit at all."""
    found: list[tuple[PerLayout, Layouts]] = []
    for block in _merged(layout_blocks(bounds.facts, pins)):
        view = bounds.look_at(block)
        fits = view.take(view.lower_bytes <= bounds.largest_bytes)
        order = np.argsort(fits.lower_bytes, kind="stable")[:most]
        found.append((fits.lower_bytes[order], fits.layouts.take(order)))
    return _nearest(found, most)


def _nearest(found: list[tuple[PerLayout, Layouts]], most: int) -> Layouts:
    """Returns the layouts of several blocks that need least."""
    rows = _joined([layouts for _, layouts in found])
    needs = np.concatenate([need for need, _ in found] or [np.zeros(0)])
    return rows.take(np.argsort(needs, kind="stable")[:most])


def _merged(blocks: Iterator[Layouts]) -> Iterator[Layouts]:
    """Yields small blocks several at a time: looking at each alone costs more than its rows."""
    waiting: list[Layouts] = []
    for block in blocks:
        waiting.append(block)
        if sum(map(len, waiting)) >= MERGED_ROWS:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


class _Kept:
    """What earlier blocks left, and the step time that some layout among them surely reaches."""

    def __init__(self) -> None:
        self._views: list[View] = []
        self._nearest: list[tuple[PerLayout, Layouts]] = []
        self._limit_s = np.inf

    def add(self, block: View, proposed: View) -> None:
        """Adds what is proposed of a block."""
        if not len(proposed.layouts):
            order = np.argsort(block.lower_bytes, kind="stable")[:NEAREST]
            self._nearest.append((block.lower_bytes[order], block.layouts.take(order)))
            return
        reached = np.where(proposed.surely_fits(), proposed.step.upper_s, np.inf)
        self._limit_s = min(self._limit_s, SLACK * float(reached.min()))
        self._views.append(proposed.take(proposed.step.lower_s <= np.inf))

    def survivors(self, dropped: Counter[str]) -> tuple[Layouts, PerLayout]:
        """Returns what can still win with its bounds, or the nearest misses; counts its drops."""
        if not self._views:
            nearest = self._nearest_misses(dropped)
            return nearest, np.zeros(len(nearest))
        parts, bounds_s = [], []
        for view in self._views:
            slower = beaten(view, self._limit_s)
            dropped.update({name: int(mask.sum()) for name, mask in slower.items()})
            kept = ~np.any(list(slower.values()), axis=0)
            parts.append(view.layouts.take(kept))
            bounds_s.append(view.step.lower_s[kept])
        return _joined(parts), np.concatenate(bounds_s)

    def _nearest_misses(self, dropped: Counter[str]) -> Layouts:
        nearest = _nearest(self._nearest, NEAREST)
        dropped["memory_lower_bound"] -= len(nearest)
        return nearest


def _joined(parts: list[Layouts]) -> Layouts:
    empty = np.zeros(0, dtype=np.int32)
    names = [field.name for field in fields(Layouts)]
    columns = [[getattr(part, name) for part in parts] or [empty] for name in names]
    return Layouts(*(np.concatenate(column) for column in columns))
