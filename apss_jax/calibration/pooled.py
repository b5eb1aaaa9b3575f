"""The stack for unlisted frameworks, from what the fitted stacks have in common: one vote each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from apss_jax.calibration.fit import Fitted, Surface, refit
from apss_jax.calibration.folds import labelled_figures
from apss_jax.calibration.library_constants import FALLBACK, LibraryConstant, Values, with_values
from apss_jax.calibration.prediction import Figures, predict_subjects
from apss_jax.calibration.subject import Subject
from apss_jax.schema.priors import EACH, Prior

PerRun = Float[np.ndarray, " samples"]
Indices = Int[np.ndarray, " samples"]
Kept = Int[np.ndarray, " batch"]
Names = Shaped[np.ndarray, " batch"]


def pooled(fitted: Fitted, without: str | None = None) -> Fitted:
    """Returns the fallback's constants from those of all stacks, or of all but one.

    A cost that only one stack has a constant for, or one of known value, is no part of it. How
    much is determined is what the stacks together take from the variance of the prior.
    """
    families = _families(fitted, without)
    return Fitted(
        constants=tuple(LibraryConstant(members[0].prior, (FALLBACK,)) for members in families),
        values=np.array([_mean(members) for members in families]),
        determined_fraction=np.array([1.0 - 1.0 / _votes(members) for members in families]),
    )


@dataclass(frozen=True)
class _Member:
    """A constant of one stack, and the share of its prior's variance that runs take from it."""

    prior: Prior
    value: float
    share: float


def _families(fitted: Fitted, without: str | None) -> list[list[_Member]]:
    """Returns the constants that every stack has, those of one field together."""
    found: dict[str, list[_Member]] = {}
    told = zip(
        fitted.constants, fitted.values.tolist(), fitted.determined_fraction.tolist(), strict=True
    )
    for constant, value, share in told:
        prior = constant.prior
        if prior.of == "stack" and prior.group == EACH and without not in constant.names:
            found.setdefault(prior.field, []).append(_Member(prior, value, share))
    return list(found.values())


def _mean(members: Sequence[_Member]) -> float:
    """Returns the mean of a constant over stacks and the prior, of logarithms.

    Stacks are taken to scatter around their mean by the prior's own width, so that a stack counts
    by the share d of the prior's variance that its runs take away. The best estimate of the mean,
    a random effects one (DerSimonian and Laird 1986, doi 10.1016/0197-2456(86)90046-2), then is
    prior + sum(own - prior) / (1 + sum(d)).
    """
    prior = members[0].prior
    distance = sum(float(np.log(each.value / prior.value)) for each in members) / _votes(members)
    return float(np.clip(prior.value * np.exp(distance), prior.low, prior.high))


def _votes(members: Sequence[_Member]) -> float:
    """Returns how many stacks tell of a constant, the prior one of them."""
    return 1.0 + sum(each.share for each in members)


def figures_without_own(
    subjects: Sequence[Subject], fits: Sequence[tuple[Surface, Indices, Fitted]]
) -> Figures:
    """Returns each run's figures by constants that no run of its framework has touched.

    Those of devices and links are fitted again without it, the stack's are the mean of the others.
    `subjects` are under the fallback; `fits` has, for each quantity, its surface of runs as they
    stand, the rows that were fitted, and what was found on all of them.
    """
    frameworks = [subject.framework.stack for subject in subjects]
    names, labels = np.unique(np.array(frameworks), return_inverse=True)

    def predicted(label: int, members: Sequence[Subject]) -> Figures:
        parts: list[Fitted] = []
        for surface, rows, found in fits:
            others = refit(surface, _without(str(names[label]), surface, rows), found)
            parts += [others, pooled(others, str(names[label]))]
        constants = [constant for part in parts for constant in part.constants]
        values: Values = np.concatenate([part.values for part in parts])
        return predict_subjects(with_values(members, constants, values))

    return labelled_figures(subjects, labels.ravel(), predicted)


def _without(framework: str, surface: Surface, rows: Indices) -> Kept:
    subjects = surface.evidence.subjects
    return np.array([i for i in rows if subjects[i].framework.stack != framework], dtype=int)


def equal_votes(names: Names) -> PerRun:
    """Returns a weight for each run, by which each name weighs as much as any other."""
    _, labels, counts = np.unique(names, return_inverse=True, return_counts=True)
    return 1.0 / counts[labels.ravel()]
