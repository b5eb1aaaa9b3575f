"""A stack file from a few runs that somebody measured on their own cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apss_jax.calibration.constant_fit import ConstantFit
from apss_jax.calibration.constants import (
    NORMAL_80,
    Constant,
    memory_constants,
    time_constants,
)
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.own_figures import MeasuredFigure
from apss_jax.calibration.prediction import Predictions, predict_runs, reach_of_subject
from apss_jax.importers.clusters import load_stack
from apss_jax.importers.frameworks import framework_named
from apss_jax.planning.uncertainty import ends_of, sizes_of, spans_of
from apss_jax.schema.calibration import (
    Calibration,
    FittedConstant,
    LeftOutRun,
    OpenConstant,
)
from apss_jax.schema.errors import mistake
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Stack

TIME_NOISE = 0.10  # of a logarithm: what layouts of one cluster differ by once its factor is known
MEMORY_NOISE = 0.07


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The stack, and what is to be said about it."""

    stack: Stack
    document: Calibration


def calibrate_stack(
    runs: Sequence[Run], *, base: Stack | None = None, name: str = "calibrated"
) -> Calibrated:
    """Returns a stack fitted to the runs, from the stack that their framework means or `base`.

    Raises `InputError` where no run has a step time, where runs contradict each other, or where
    their frameworks mean several stacks.
    """
    given = base if base is not None else _base_of(runs)
    predictions = predict_runs(runs, stack=given)
    comparison = Comparison.of(predictions)
    start = _on_devices(given, comparison)
    names = {id(run): run.run_id or f"run {i + 1}" for i, run in enumerate(runs)}
    left_out = _left_out(predictions, comparison, names)
    _require_times(comparison, left_out)
    labels = [names[id(subject.run)] for subject in comparison.subjects]
    times = MeasuredFigure.of(comparison, comparison.step_time_s, labels, "step time")
    held = MeasuredFigure.of(comparison, comparison.memory_bytes, labels, "memory")
    time_fit = times.fit(start, time_constants(start), TIME_NOISE, overall_first=True)
    memory_fit = held.fit(start, memory_constants(start), MEMORY_NOISE)
    known = _known(start, comparison)
    stack = _stack(known, time_fit, memory_fit, name, labels)
    document = _document(start, stack, (times, held), (time_fit, memory_fit))
    counts = {"runs": len(runs), "left_out": left_out}
    return Calibrated(stack, document.model_copy(update=counts))


def _left_out(
    predictions: Predictions, comparison: Comparison, names: Mapping[int, str]
) -> tuple[LeftOutRun, ...]:
    """Returns the runs that tell nothing, with the reason."""
    skipped = [LeftOutRun(run=names[id(s.run)], reason=s.reason) for s in predictions.skipped]
    silent = np.isnan(comparison.step_time_s) & np.isnan(comparison.memory_bytes)
    why = "neither step time nor memory was measured"
    return (
        *skipped,
        *(
            LeftOutRun(run=names[id(comparison.subjects[i].run)], reason=why)
            for i in np.flatnonzero(silent)
        ),
    )


def _base_of(runs: Sequence[Run]) -> Stack:
    names = sorted({framework_named(run.framework).stack for run in runs})
    if len(names) != 1:
        rule = f"the frameworks of the runs mean several stacks: {', '.join(names)}"
        raise mistake("framework", "", rule, "Name one with --base, or calibrate each apart")
    return load_stack(names[0])


def _require_times(comparison: Comparison, left_out: Sequence[LeftOutRun]) -> None:
    if comparison.is_timed.any():
        return
    why = "; ".join(f"{each.run}: {each.reason}" for each in left_out[:3])
    rule = f"no run has a step time that can be used{f' ({why})' if why else ''}"
    raise mistake("step_time_s", "", rule, "Fill it in, or tokens_per_s_per_gpu")


def _stack(
    base: Stack,
    time_fit: ConstantFit | None,
    memory_fit: ConstantFit | None,
    name: str,
    labels: Sequence[str],
) -> Stack:
    moves: dict[str, object] = {}
    for fit in filter(None, (time_fit, memory_fit)):
        moves.update({constant.field: constant.value(fit.stack) for constant in fit.fitted})
    said = ", ".join(f"{field} {value:.4g}" for field, value in moves.items())
    source = (
        f"Calibrated from '{base.name}' on {', '.join(labels)}: {said or 'nothing determined'}; "
        f"all else as there. {base.source}"
    )
    moves["step_time_error_fraction"] = _error(
        base.step_time_error_fraction, time_fit, TIME_NOISE, NORMAL_80
    )
    moves["memory_error_fraction"] = _error(
        base.memory_error_fraction, memory_fit, MEMORY_NOISE, 1.0
    )
    # Legality knows a framework by its name, which the calibrated one therefore keeps.
    full = name if base.name in name else f"{base.name}-{name}"
    return base.model_copy(update={"name": full, "source": source, **moves})


def _on_devices(base: Stack, comparison: Comparison) -> Stack:
    """Returns the stack with the error that it has on the runs' device types as its only one."""
    kinds = {(s.cluster.used_types, s.precision == "fp8") for s in comparison.subjects}
    usual = base.step_time_error_fraction
    error = max((base.error_fraction_on(on, fp8=fp8) for on, fp8 in kinds), default=usual)
    return base.model_copy(update={"step_time_error_fraction": error, "device_errors": ()})


def _known(base: Stack, comparison: Comparison) -> Stack:
    """Returns the stack with what need not widen its intervals once these runs were timed."""
    timed = [s for s, yes in zip(comparison.subjects, comparison.is_timed, strict=True) if yes]
    reaches = [reach_of_subject(subject, base.fitted_spans) for subject in timed]
    sizes = [sizes_of(s.model, s.cluster, s.layout, s.seq_len) for s in timed]
    has_experts = any(reach.has_experts for reach in reaches)
    return base.model_copy(
        update={
            "expert_error_fraction": 0.0 if has_experts else base.expert_error_fraction,
            "fitted_spans": spans_of([*ends_of(base.fitted_spans), *sizes]),
        }
    )


def _error(start: float, fit: ConstantFit | None, noise: float, width: float) -> float:
    """Returns the error of further predictions: what remains unknown, and what was missed."""
    if fit is None:
        return start
    missed = float(np.sqrt(np.mean(fit.residual**2)))
    found = width * float(np.hypot(max(noise, missed), fit.predicted_deviation))
    return found if width * missed > start else min(start, found)


def _document(
    base: Stack,
    stack: Stack,
    figures: tuple[MeasuredFigure, MeasuredFigure],
    fits: tuple[ConstantFit | None, ConstantFit | None],
) -> Calibration:
    fitted, left = [], []
    for constants, fit in zip((time_constants(base), memory_constants(base)), fits, strict=True):
        for constant in constants:
            share = fit.left.get(constant.field, 1.0) if fit else 1.0
            if fit and constant in fit.fitted:
                fitted.append(_fitted(constant, base, stack, share))
            elif constant.can_move(base):
                left.append(_open(constant, base, share))
    return Calibration(
        stack=stack.name,
        base=base.name,
        runs=1,
        left_out=(),
        step_time=figures[0].summary(base, fits[0]),
        memory=figures[1].summary(base, fits[1]),
        fitted=tuple(fitted),
        not_determined=tuple(left),
        step_time_error_fraction=stack.step_time_error_fraction,
        memory_error_fraction=stack.memory_error_fraction,
    )


def _fitted(constant: Constant, base: Stack, stack: Stack, share: float) -> FittedConstant:
    return FittedConstant(
        constant=constant.field,
        before=constant.value(base),
        after=constant.value(stack),
        uncertainty_left_fraction=share,
    )


def _open(constant: Constant, base: Stack, share: float) -> OpenConstant:
    return OpenConstant(
        constant=constant.field,
        value=constant.value(base),
        uncertainty_left_fraction=share,
        needs=constant.needs,
    )
