"""What a fit of the library says: new constants with their sources, and held-out accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from apss_jax.calibration.folds import spans_of_subjects
from apss_jax.calibration.library_constants import FALLBACK, changes_of, with_values
from apss_jax.calibration.library_files import Fields, NewConstants
from apss_jax.calibration.library_fit import Errors, Fit, LibraryFit
from apss_jax.calibration.library_words import Wording
from apss_jax.calibration.prediction import Figures, Predictions, predict_subjects
from apss_jax.calibration.subject import Subject
from apss_jax.calibration.validation import Validated, parts_of, validation_of
from apss_jax.planning.uncertainty import step_time_error_fraction
from apss_jax.schema.validation import HeldOut


def new_constants(found: LibraryFit, label_sources: Sequence[str]) -> NewConstants:
    """Returns what `write_constants` writes, given the sources whose outcomes a fit believes."""
    own, generic = found.own, found.generic
    stacks: dict[str, Fields] = {**changes_of(own.constants, own.values, "stack")}
    for name, fields in changes_of(generic.constants, generic.values, "stack").items():
        stacks[name] = {**stacks.get(name, {}), **fields}
    devices = changes_of(own.constants, own.values, "device")
    links = changes_of(own.constants, own.values, "link")
    for name, errors in found.errors.items():
        pairs = [each.model_dump(mode="json") for each in errors["device_errors"]]
        beside = {"device_errors": pairs, "fitted_spans": _spans(found, name)}
        stacks[name] = {**stacks.get(name, {}), **errors, **beside}
    wording = Wording.of(found, label_sources)
    sources = {name: wording.of_stack(name) for name in stacks}
    sources |= {name: wording.of_device(name) for name in devices}
    sources |= {name: wording.of_link(name) for name in links}
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
