"""How wide the intervals of step times must be, from how far off runs were that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from apss_jax.calibration.intervals import COVERAGE, FEW_ROWS, weighted_quantile
from apss_jax.planning.uncertainty import Reach

PerRun = Float[np.ndarray, " batch"]
Chosen = Bool[np.ndarray, " batch"]
Names = Shaped[np.ndarray, " batch"]
Votes = Int[np.ndarray, " batch"]
"""A number for each voter."""
TRIED: Final = (0.0, *np.geomspace(0.02, 0.6, 12).tolist())  # of a logarithm
LEAST_WIDTH: Final = 0.05  # of a logarithm: no group's runs are all independent


@dataclass(frozen=True, eq=False)
class Misses:
    """How far off predictions of left-out runs were, and how far those runs lie from the others."""

    log_error: PerRun  # of measured over predicted, without sign
    weight: PerRun
    voter: Votes  # runs of one voter are no independent evidence
    has_experts: PerRun  # 0 or 1
    domain_doublings: PerRun
    far_doublings: PerRun

    @staticmethod
    def of(
        log_error: PerRun, weight: PerRun, reaches: Sequence[Reach], voter: Votes | None = None
    ) -> Misses:
        """Returns the misses of runs in their order, each run its own voter unless said."""
        columns = ("has_experts", "domain_doublings", "far_doublings")
        told = {name: np.array([float(getattr(r, name)) for r in reaches]) for name in columns}
        votes = np.arange(len(log_error)) if voter is None else voter
        return Misses(np.abs(log_error), weight, votes, **told)

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


def fit_widths(
    misses: Misses, groups: Sequence[str], classes: Sequence[str] | None = None
) -> dict[str, Width]:
    """Returns for each group the width that 80 % of its misses, by weight, lie within.

    What experts and far sizes add is common to all groups, what domains add is a group's own: it is
    told within `classes`, whose runs have widths of their own, or more domains would seem to add
    what another class of devices does.
    Whether experts and domains add anything is told by the quantile loss (Koenker and Bassett
    1978), each group's against its own without. A group of few runs is as uncertain as all are.
    """
    named = np.array(groups)
    is_near = misses.far_doublings == 0
    few = {name for name in set(groups) if (is_near & (named == name)).sum() < FEW_ROWS}
    parts = {name: misses.chosen(is_near & (named == name)) for name in sorted(set(groups) - few)}
    expert = min(TRIED, key=lambda tried: _common_loss(parts, tried))
    kinds = np.array(["" for _ in groups] if classes is None else classes)
    found = {
        name: _grown(part, expert, kinds[is_near & (named == name)]) for name, part in parts.items()
    }
    found |= dict.fromkeys(sorted(few), _width(misses.chosen(is_near), expert))
    far = _far(misses, named, found)
    return {name: replace(width, far=far) for name, width in found.items()}


def base_within(part: Misses, common: Width) -> float:
    """Returns the base that some runs of a group need where the other parts are the group's."""
    return _width(part, common.expert, common.domain).base


def _far(misses: Misses, named: Names, widths: dict[str, Width]) -> float:
    """Returns what a doubling beyond other runs adds, all groups together."""
    known = np.zeros_like(misses.log_error)
    for name, width in widths.items():
        known[named == name] = width.of(misses.chosen(named == name))
    return _per_doubling(misses, known, misses.far_doublings)


def _per_doubling(misses: Misses, known: PerRun, doublings: PerRun) -> float:
    """Returns what each doubling adds to known widths, by the quantile loss of runs with any.

    0 where none has. Runs hardly beyond others have little to say, however far off they are.
    """
    rows = doublings > 0
    if not rows.any():
        return 0.0
    beyond, weight = doublings[rows], misses.weight[rows]
    off, before = misses.log_error[rows], known[rows]
    return min(
        TRIED, key=lambda tried: _quantile_loss(off, np.hypot(before, tried * beyond), weight)
    )


def _common_loss(parts: dict[str, Misses], expert: float) -> float:
    """Returns the mean loss of the groups; a part that gains too little counts as none."""
    losses = []
    for part in parts.values():
        plain = _loss(part, _width(part, 0.0))
        losses.append(_loss(part, _width(part, expert)) / plain)
    return float(np.mean(losses))


def _grown(part: Misses, expert: float, kinds: Names) -> Width:
    """Returns the width with what domains add beside that of single ones, if that tells much."""
    plain = _width(part, expert)
    usual, start = _within_kinds(part, expert, kinds)
    told = np.isfinite(start)
    if not told.any():
        return plain
    own, usual, start = part.chosen(told), usual[told], start[told]
    domain = _per_doubling(own, start, own.domain_doublings)
    grown = np.hypot(start, domain * own.domain_doublings)
    losses = [_quantile_loss(own.log_error, each, own.weight) for each in (usual, grown)]
    if not _tells(losses[0], losses[1], float(own.weight.sum())):
        return plain
    # Runs on one domain are to be covered, and all: kinds without any on one have had no say yet.
    single = _width(part.chosen(part.domain_doublings == 0), expert)
    return replace(single, base=max(single.base, _width(part, expert, domain).base), domain=domain)


def _tells(before: float, after: float, runs: float) -> bool:
    """Returns whether one more constant lessens a mean quantile loss by more than chance does.

    The logarithm of the loss, times the runs, is the likelihood that belongs to it (Yu and Moyeed
    2001, doi 10.1016/S0167-7152(01)00124-9); the price of a constant is Schwarz's (1978).
    """
    return runs * float(np.log(before / after)) > 0.5 * float(np.log(max(runs, 1.0)))


def _within_kinds(part: Misses, expert: float, kinds: Names) -> tuple[PerRun, PerRun]:
    """Returns half widths by the kind of each run: of all its runs, and of those on one domain.

    NaN for kinds of which too few ran on one.
    """
    usual, start = (np.full_like(part.log_error, np.nan) for _ in range(2))
    for kind in np.unique(kinds):
        rows = kinds == kind
        own = part.chosen(rows)
        single = own.domain_doublings == 0
        if single.sum() >= FEW_ROWS:
            usual[rows] = _width(own, expert).of(own)
            start[rows] = _width(own.chosen(single), expert).of(own)
    return usual, start


def _width(part: Misses, expert: float, domain: float = 0.0) -> Width:
    """Returns the width that covers its share of one more run, as far as its other part lets it.

    Of n runs that is a share of 1 + 1 / n times as many (split conformal prediction, Lei et al.
    2018, arXiv 1604.04173); n is Kish's effective number where weights differ. Where many runs are
    one voter's, n counts voters: the next run is a new one's (Dunn, Wasserman and Ramdas 2018,
    arXiv 1809.07441).
    """
    beside = _beside(part, expert, domain, 0.0)
    votes = np.bincount(part.voter, weights=part.weight)
    share = min(1.0, COVERAGE * (1.0 + (votes**2).sum() / votes.sum() ** 2))
    left = weighted_quantile(part.log_error**2 - beside, part.weight, share)
    return Width(float(np.sqrt(max(left, LEAST_WIDTH**2))), expert, 0.0, 0.0)


def _beside(misses: Misses, expert: float, domain: float, far: float) -> PerRun:
    """Returns the squares of the parts beside the base."""
    return (
        (expert * misses.has_experts) ** 2
        + (domain * misses.domain_doublings) ** 2
        + (far * misses.far_doublings) ** 2
    )


def _loss(part: Misses, width: Width) -> float:
    return _quantile_loss(part.log_error, width.of(part), part.weight)


def _quantile_loss(log_error: PerRun, half_width: PerRun, weight: PerRun) -> float:
    """Returns the mean loss that is least where 80 % of the errors lie within (Koenker 1978)."""
    over = log_error - half_width
    each = np.where(over > 0, COVERAGE * over, (COVERAGE - 1.0) * over)
    return float(np.average(each, weights=weight))
