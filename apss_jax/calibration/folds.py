"""Predictions of runs by constants that were fitted without them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields

import numpy as np
from jaxtyping import Int

from apss_jax.calibration.experiments import experiment_key
from apss_jax.calibration.fit import Fitted, Surface, refit
from apss_jax.calibration.library_constants import LibraryConstant, with_values
from apss_jax.calibration.prediction import Figures, predict_subjects, reach_of_subject
from apss_jax.calibration.subject import Subject
from apss_jax.planning.uncertainty import Reach, sizes_of, spans_of
from apss_jax.schema.stack import Spans

Labels = Int[np.ndarray, " batch"]
Indices = Int[np.ndarray, " samples"]
NUM_FOLDS = 4


def experiment_folds(subjects: Sequence[Subject], num_folds: int = NUM_FOLDS) -> Labels:
    """Returns the fold of each run: whole experiments, the runs of each source spread evenly."""
    sizes: dict[str, dict[Hashable, list[int]]] = {}
    for i, subject in enumerate(subjects):
        own = sizes.setdefault(subject.run.source_name, {})
        own.setdefault(experiment_key(subject.run), []).append(i)
    folds = np.zeros(len(subjects), dtype=int)
    for number, experiments in enumerate(sizes.values()):
        load = [0] * num_folds
        ordered = sorted(experiments.values(), key=len, reverse=True)  # stable
        for members in ordered:
            # Sources of one experiment each begin at different folds.
            fold = min(range(num_folds), key=lambda f: (load[f], (f - number) % num_folds))
            load[fold] += len(members)
            folds[members] = fold
    return folds


def held_out_figures(
    subjects: Sequence[Subject],
    folds: Labels,
    fits: Sequence[tuple[Surface, Indices, Fitted, Labels]],
) -> Figures:
    """Returns each run's figures by constants fitted without its fold.

    `fits` has, for each quantity, its surface, the rows that were fitted, what was found on all of
    them (where the fits of the folds begin), and the folds of the surface's rows.
    """

    def predicted(fold: int, members: Sequence[Subject]) -> Figures:
        constants: list[LibraryConstant] = []
        values = []
        for surface, rows, found, own in fits:
            constants += surface.constants
            values.append(refit(surface, rows[own[rows] != fold], found).values)
        return predict_subjects(with_values(members, constants, np.concatenate(values)))

    return labelled_figures(subjects, folds, predicted)


def labelled_figures(
    subjects: Sequence[Subject],
    labels: Labels,
    predicted: Callable[[int, Sequence[Subject]], Figures],
) -> Figures:
    """Returns the figures of runs in their order, those of each label predicted together."""
    parts: list[Figures] = []
    order: list[int] = []
    for label in np.unique(labels).tolist():
        members = np.flatnonzero(labels == label).tolist()
        parts.append(predicted(label, [subjects[i] for i in members]))
        order += members
    return _in_order(parts, np.array(order, dtype=int))


def left_out_reaches(
    subjects: Sequence[Subject], folds: Labels, groups: Sequence[str]
) -> tuple[Reach, ...]:
    """Returns how far each run lies from the runs of its group in other folds."""
    spans: dict[tuple[str, int], Spans] = {}
    found = []
    for s, fold, group in zip(subjects, folds.tolist(), groups, strict=True):
        if (group, fold) not in spans:
            spans[group, fold] = spans_of_subjects(
                other
                for other, its, name in zip(subjects, folds.tolist(), groups, strict=True)
                if name == group and its != fold
            )
        found.append(reach_of_subject(s, spans[group, fold]))
    return tuple(found)


def spans_of_subjects(subjects: Iterable[Subject]) -> Spans:
    """Returns the least and the largest sizes of runs."""
    return spans_of(sizes_of(s.model, s.cluster, s.layout, s.seq_len) for s in subjects)


def _in_order(parts: Sequence[Figures], order: Indices) -> Figures:
    back = np.argsort(order)
    return Figures(
        **{
            f.name: np.concatenate([getattr(p, f.name) for p in parts])[back]
            for f in fields(Figures)
        }
    )
