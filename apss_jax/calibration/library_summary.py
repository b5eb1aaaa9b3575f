"""What a fit of the library says: new constants with their sources, and held-out accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from apss_jax.calibration.fit import Fitted
from apss_jax.calibration.folds import spans_of_subjects
from apss_jax.calibration.library_constants import (
    FALLBACK,
    LibraryConstant,
    changes_of,
    with_values,
)
from apss_jax.calibration.library_files import Fields, NewConstants
from apss_jax.calibration.library_fit import Errors, Fit, LibraryFit
from apss_jax.calibration.prediction import Figures, Predictions, predict_subjects
from apss_jax.calibration.subject import Subject
from apss_jax.calibration.validation import Validated, parts_of, validation_of
from apss_jax.planning.uncertainty import step_time_error_fraction
from apss_jax.schema.validation import HeldOut

COMMAND: Final = "python -m apss_jax.cli.fit"
DETERMINED: Final = 0.5  # share of its prior's variance that runs take from a constant
Belongs = Callable[[Subject], bool]
"""Whether a run was among those that a file's constants were fitted on."""


def new_constants(found: LibraryFit) -> NewConstants:
    """Returns what `write_constants` writes."""
    own, generic = found.own, found.generic
    stacks: dict[str, Fields] = {**changes_of(own.constants, own.values, "stack")}
    for name, fields in changes_of(generic.constants, generic.values, "stack").items():
        stacks[name] = {**stacks.get(name, {}), **fields}
    devices = changes_of(own.constants, own.values, "device")
    links = changes_of(own.constants, own.values, "link")
    for name, errors in found.errors.items():
        stacks[name] = {**stacks.get(name, {}), **errors, "fitted_spans": _spans(found, name)}
    sources = {name: _of_stack(name, generic if name == FALLBACK else own) for name in stacks}
    sources |= {name: _of_device(name, own) for name in devices}
    sources |= {name: _of_link(name, own) for name in links}
    return NewConstants(devices, links, stacks, sources)


def _spans(found: LibraryFit, name: str) -> dict[str, list[int]]:
    """Returns the sizes that a stack's runs with a step time span."""
    comparison = (found.generic if name == FALLBACK else found.own).comparison
    timed = zip(comparison.subjects, comparison.is_timed, strict=True)
    spans = spans_of_subjects(s for s, is_timed in timed if is_timed and s.stack.name == name)
    return {size: list(span) for size, span in spans if span is not None}


def held_out(found: LibraryFit) -> HeldOut:
    """Returns the accuracy on runs whose experiment, or whole framework, was left out."""
    own = _left_out(found.own, found)
    generic = _left_out(found.generic, found)
    return HeldOut(
        sources=own.document.sources,
        parts=parts_of(own.comparison),
        experiments=own.document.experiments,
        generic=generic.document.sources,
        generic_parts=parts_of(generic.comparison),
    )


def _left_out(fitted: Fit, found: LibraryFit) -> Validated:
    figures = _with_intervals(fitted, found.errors)
    return validation_of(Predictions(fitted.comparison.subjects, figures, found.skipped))


def fitted_validation(found: LibraryFit) -> Validated:
    """Returns the accuracy on the runs that the constants were fitted on."""
    own = found.own
    subjects = _with_errors(own.comparison.subjects, found.errors)
    figures = predict_subjects(with_values(subjects, own.constants, own.values))
    predictions = Predictions(own.comparison.subjects, figures, found.skipped)
    return validation_of(predictions)


def _with_intervals(fitted: Fit, errors: Errors) -> Figures:
    figures = fitted.held_out
    subjects = _with_errors(fitted.comparison.subjects, errors)
    told = zip(subjects, fitted.reaches, figures.measured_fraction.tolist(), strict=True)
    factor = 1.0 + np.array([step_time_error_fraction(s.stack, *reach) for s, *reach in told])
    return replace(figures, low_s=figures.step_time_s / factor, high_s=figures.step_time_s * factor)


def _with_errors(subjects: Iterable[Subject], errors: Errors) -> list[Subject]:
    found = list(subjects)
    stacks = {id(s.stack): s.stack.model_copy(update=errors[s.stack.name]) for s in found}
    return [replace(s, stack=stacks[id(s.stack)]) for s in found]


def _of_stack(name: str, fitted: Fit) -> str:
    def belongs(subject: Subject) -> bool:
        return subject.stack.name == name

    def of_it(constant: LibraryConstant) -> bool:
        return constant.prior.of == "stack" and name in constant.names

    sets = [_rows(fitted, belongs), *_narrowed(fitted, of_it)]
    interval = "Intervals hold 80 % of the runs of experiments that a fit was made without."
    if name == FALLBACK:
        interval = "Intervals hold 80 % of the runs of frameworks that a fit was made without."
    return " ".join([*sets, interval])


def _of_device(name: str, fitted: Fit) -> str:
    def belongs(subject: Subject) -> bool:
        return any(name in names and set(names) & set(subject.cluster.used_types) for names in own)

    def of_it(constant: LibraryConstant) -> bool:
        return constant.prior.of == "device" and name in constant.names

    own = [c.names for c in fitted.constants if of_it(c)]
    group = next(c.prior.group for c in fitted.constants if of_it(c))
    return " ".join([f"{group} class.", _rows(fitted, belongs), *_narrowed(fitted, of_it)])


def _of_link(name: str, fitted: Fit) -> str:
    def belongs(subject: Subject) -> bool:
        return any(set(names) & set(subject.cluster.links) for names in own)

    def of_it(constant: LibraryConstant) -> bool:
        return constant.prior.of == "link" and name in constant.names

    own = [c.names for c in fitted.constants if of_it(c)]
    words = "Fractions and latency are shared by all networks between nodes."
    return " ".join([words, _rows(fitted, belongs), *_narrowed(fitted, of_it)])


def _rows(fitted: Fit, belongs: Belongs) -> str:
    """Returns in words how many runs of which sources took part."""
    comparison = fitted.comparison
    mine = np.array([belongs(s) for s in comparison.subjects], dtype=bool)
    names = np.array([s.run.source_name for s in comparison.subjects], dtype=object)
    times = Counter(names[mine & comparison.is_timed].tolist())
    figures = Counter(names[mine & np.isfinite(comparison.memory_bytes)].tolist())
    text = f"Fitted by `make fit` ({COMMAND}) on step times of {_counted(times)}"
    return f"{text}; peak memory of {_counted(figures)}." if figures else f"{text}."


def _counted(counts: Counter[str]) -> str:
    listed = ", ".join(f"{name} ({number})" for name, number in counts.most_common())
    return listed or "no source"


def _narrowed(fitted: Fit, of_it: Callable[[LibraryConstant], bool]) -> list[str]:
    """Returns in words which constants the runs determine and which stay near their priors."""
    known: list[str] = []
    open_ones: list[str] = []
    for each in (fitted.step_time, fitted.memory):
        for constant, share in _shares(each):
            if of_it(constant) and constant.prior.sigma > 0:
                (known if share >= DETERMINED else open_ones).append(constant.prior.field)
    texts = [f"Determined: {', '.join(known)}."] if known else []
    if open_ones:
        texts.append(f"Near their priors (references/priors.json): {', '.join(open_ones)}.")
    return texts


def _shares(fitted: Fitted) -> Iterable[tuple[LibraryConstant, float]]:
    return zip(fitted.constants, fitted.determined_fraction.tolist(), strict=True)
