"""A stack file from a few runs that somebody measured on their own cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from jaxtyping import Float, Int

from apss_jax.calibration.constant_fit import ConstantFit, fit_constants
from apss_jax.calibration.constants import (
    NORMAL_80,
    Constant,
    memory_constants,
    time_constants,
)
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.metrics import absolute_error_percent, mean
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.subject import Subject
from apss_jax.importers.clusters import load_stack
from apss_jax.importers.frameworks import framework_named
from apss_jax.schema.calibration import (
    Calibration,
    FigureFit,
    FittedConstant,
    LeftOutRun,
    OpenConstant,
)
from apss_jax.schema.errors import mistake
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Stack

TIME_NOISE = 0.10  # of a logarithm: what layouts of one cluster differ by once its factor is known
MEMORY_NOISE = 0.07
MOST_REPEAT_RATIO = 1.5  # between runs of one layout; published repeats differ by 1.3 at most
MOST_RATIO = 3.0  # between two layouts, of measured over predicted, after the fit
MOST_FACTOR = 5.0  # of measured over predicted before it

PerRun = Float[np.ndarray, " batch"]
Groups = Int[np.ndarray, " batch"]


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
    start = base if base is not None else _base_of(runs)
    predictions = predict_runs(runs, stack=start)
    names = {id(run): run.run_id or f"run {i + 1}" for i, run in enumerate(runs)}
    comparison = Comparison.of(predictions)
    left_out = [LeftOutRun(run=names[id(s.run)], reason=s.reason) for s in predictions.skipped]
    left_out += [
        LeftOutRun(run=names[id(subject.run)], reason="neither step time nor memory was measured")
        for subject, time_s, held in zip(
            comparison.subjects, comparison.step_time_s, comparison.memory_bytes, strict=True
        )
        if np.isnan(time_s) and np.isnan(held)
    ]
    _require_times(comparison, left_out)
    labels = [names[id(subject.run)] for subject in comparison.subjects]
    times = _Figure.of(comparison, comparison.step_time_s, labels, "step time")
    held = _Figure.of(comparison, comparison.memory_bytes, labels, "memory")
    time_fit = times.fit(start, time_constants(start), TIME_NOISE)
    memory_fit = held.fit(start, memory_constants(start), MEMORY_NOISE)
    stack = _stack(start, time_fit, memory_fit, name, labels)
    document = _document(start, stack, (times, held), (time_fit, memory_fit))
    return Calibrated(
        stack,
        document.model_copy(update={"runs": len(runs), "left_out": tuple(left_out)}),
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


@dataclass(frozen=True, eq=False)
class _Figure:
    """One measured figure of different runs: repeats are one, by their geometric mean."""

    subjects: tuple[Subject, ...]
    measured: PerRun  # logarithms
    labels: tuple[str, ...]
    what: str
    num_runs: int

    @staticmethod
    def of(comparison: Comparison, values: PerRun, labels: Sequence[str], what: str) -> _Figure:
        groups: dict[object, list[int]] = {}
        for i in np.flatnonzero(np.isfinite(values)).tolist():
            groups.setdefault(_configuration(comparison.subjects[i]), []).append(i)
        for members in groups.values():
            _refuse_repeats(values[members], [labels[i] for i in members], what)
        firsts = [members[0] for members in groups.values()]
        return _Figure(
            subjects=tuple(comparison.subjects[i] for i in firsts),
            measured=np.array([np.log(values[members]).mean() for members in groups.values()]),
            labels=tuple(labels[i] for i in firsts),
            what=what,
            num_runs=sum(map(len, groups.values())),
        )

    def predicted(self, stack: Stack) -> PerRun:
        """Returns the logarithm of what a stack predicts."""
        figures = predict_runs([subject.run for subject in self.subjects], stack=stack).figures
        values = figures.step_time_s if self.what == "step time" else figures.memory_bytes
        return np.log(values)

    def fit(self, base: Stack, constants: Sequence[Constant], noise: float) -> ConstantFit | None:
        """Returns the fit, None where nothing was measured; raises `InputError`."""
        if not self.subjects:
            return None
        self._refuse_far(base)
        overall = constants[0].field == "time_factor"
        fit = fit_constants(
            base, constants, self.predicted, self.measured, noise, overall_first=overall
        )
        self._refuse_contradiction(fit.residual)
        return fit

    def _refuse_far(self, base: Stack) -> None:
        ratio = self.measured - self.predicted(base)
        worst = int(np.argmax(np.abs(ratio)))
        if abs(ratio[worst]) > log(MOST_FACTOR):
            rule = (
                f"its {self.what} is {exp(ratio[worst]):.2g} times what is predicted for "
                f"its model, layout and GPUs, more than software explains"
            )
            remedy = "Check units, GPUs, batch and layout, or start from another --base"
            raise mistake(self.labels[worst], "", rule, remedy)

    def _refuse_contradiction(self, residual: PerRun) -> None:
        slow, fast = int(np.argmax(residual)), int(np.argmin(residual))
        ratio = exp(residual[slow] - residual[fast])
        if ratio > MOST_RATIO:
            rule = (
                f"contradict each other in {self.what}: whatever the constants, one is "
                f"{ratio:.1f} times as far above its prediction as the other"
            )
            key = f"{self.labels[slow]} and {self.labels[fast]}"
            raise mistake(key, "", rule, "Leave one out, or measure again")

    def summary(self, base: Stack, fit: ConstantFit | None) -> FigureFit:
        """Returns how close the start values and the fitted ones come."""
        if fit is None:
            return FigureFit(
                runs=0, distinct=0, mean_error_before_percent=None, mean_error_after_percent=None
            )
        measured = np.exp(self.measured)
        before, after = (np.exp(self.predicted(stack)) for stack in (base, fit.stack))
        return FigureFit(
            runs=self.num_runs,
            distinct=len(self.subjects),
            mean_error_before_percent=mean(absolute_error_percent(before, measured)),
            mean_error_after_percent=mean(absolute_error_percent(after, measured)),
        )


def _configuration(subject: Subject) -> tuple[object, ...]:
    """Returns what two runs share when one only repeats the other."""
    offsets = None if subject.offsets is None else tuple(subject.offsets.tolist())
    return (
        subject.model,
        id(subject.cluster),
        subject.seq_len,
        subject.precision,
        subject.layout,
        subject.global_batch,
        subject.num_micro_batches,
        offsets,
        id(subject.stack),
    )


def _refuse_repeats(values: PerRun, labels: Sequence[str], what: str) -> None:
    most, least = int(np.argmax(values)), int(np.argmin(values))
    ratio = float(values[most] / values[least])
    if ratio > MOST_REPEAT_RATIO:
        rule = f"differ {ratio:.1f} times in {what}, though everything that the table says is equal"
        key = f"{labels[most]} and {labels[least]}"
        raise mistake(key, "", rule, "Leave one out, or fill in what they differ in")


def _stack(
    base: Stack,
    time_fit: ConstantFit | None,
    memory_fit: ConstantFit | None,
    name: str,
    labels: Sequence[str],
) -> Stack:
    moves: dict[str, object] = {}
    for fit in (time_fit, memory_fit):
        for constant in fit.fitted if fit else ():
            moves[constant.field] = constant.value(fit.stack)  # type: ignore[union-attr]
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
    figures: tuple[_Figure, _Figure],
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
