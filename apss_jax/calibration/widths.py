"""How wide the intervals of step times must be, from how far off runs were that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
from jaxtyping import Bool, Float

from apss_jax.calibration.intervals import COVERAGE, FEW_ROWS, weighted_quantile
from apss_jax.planning.uncertainty import Reach

PerRun = Float[np.ndarray, " batch"]
Chosen = Bool[np.ndarray, " batch"]
TRIED: Final = (0.0, *np.geomspace(0.02, 0.6, 12).tolist())  # of a logarithm
LEAST_GAIN: Final = 0.1  # of the loss; less does not show that errors grow with anything
LEAST_WIDTH: Final = 0.02  # of a logarithm


@dataclass(frozen=True, eq=False)
class Misses:
    """How far off predictions of left-out runs were, and how far those runs lie from the others."""

    log_error: PerRun  # of measured over predicted, without sign
    weight: PerRun
    has_experts: PerRun  # 0 or 1
    domain_doublings: PerRun
    far_doublings: PerRun

    @staticmethod
    def of(log_error: PerRun, weight: PerRun, reaches: Sequence[Reach]) -> Misses:
        """Returns the misses of runs in their order."""
        columns = ("has_experts", "domain_doublings", "far_doublings")
        told = {name: np.array([float(getattr(r, name)) for r in reaches]) for name in columns}
        return Misses(np.abs(log_error), weight, **told)

    def chosen(self, rows: Chosen) -> Misses:
        """Returns those of some runs."""
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__annotations__})


@dataclass(frozen=True)
class Width:
    """Independent parts of the half width of an interval, as logarithms."""

    base: float
    expert: float
    domain: float  # for each doubling
    far: float  # for each doubling

    def of(self, misses: Misses) -> PerRun:
        """Returns the half width of each run."""
        return np.sqrt(self.base**2 + _beside(misses, self.expert, self.domain, self.far))


def fit_widths(misses: Misses, groups: Sequence[str]) -> dict[str, Width]:
    """Returns for each group the width that 80 % of its misses, by weight, lie within.

    What experts and far sizes add is common to all groups, what domains add is a group's own. They
    are chosen by the quantile loss (Koenker and Bassett 1978), each group's against its own without
    them. A group of few runs is as uncertain as all of them together.
    """
    named = np.array(groups)
    few = {name for name in set(groups) if (named == name).sum() < FEW_ROWS}
    parts = {name: misses.chosen(named == name) for name in sorted(set(groups) - few)}
    expert, far = min(product(TRIED, TRIED), key=lambda pair: _common_loss(parts, *pair))
    pooled = _width(misses, expert, 0.0, far)
    found = {name: _grown(part, expert, far) for name, part in parts.items()}
    return found | dict.fromkeys(sorted(few), pooled)


def _common_loss(parts: dict[str, Misses], expert: float, far: float) -> float:
    """Returns the mean loss of the groups; a part that gains too little counts as none."""
    losses = []
    for part in parts.values():
        plain = _loss(part, _width(part, 0.0, 0.0, 0.0))
        losses.append(_loss(part, _width(part, expert, 0.0, far)) / plain)
    return float(np.mean(losses))


def _grown(part: Misses, expert: float, far: float) -> Width:
    """Returns the width with what domains add, if that tells anything."""
    widths = [_width(part, expert, domain, far) for domain in TRIED]
    losses = [_loss(part, width) for width in widths]
    best = int(np.argmin(losses))
    return widths[best] if losses[best] < (1.0 - LEAST_GAIN) * losses[0] else widths[0]


def _width(part: Misses, expert: float, domain: float, far: float) -> Width:
    """Returns the width that covers its share exactly, as far as its other parts let it."""
    beside = _beside(part, expert, domain, far)
    left = weighted_quantile(part.log_error**2 - beside, part.weight, COVERAGE)
    return Width(float(np.sqrt(max(left, LEAST_WIDTH**2))), expert, domain, far)


def _beside(misses: Misses, expert: float, domain: float, far: float) -> PerRun:
    """Returns the squares of the parts beside the base."""
    return (
        (expert * misses.has_experts) ** 2
        + (domain * misses.domain_doublings) ** 2
        + (far * misses.far_doublings) ** 2
    )


def _loss(part: Misses, width: Width) -> float:
    over = part.log_error - width.of(part)
    each = np.where(over > 0, COVERAGE * over, (COVERAGE - 1.0) * over)
    return float(np.average(each, weights=part.weight))
