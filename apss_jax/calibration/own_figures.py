"""One measured figure of somebody's own runs: what repeats what, what contradicts what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal

import numpy as np
from jaxtyping import Float

from apss_jax.calibration.constant_fit import ConstantFit, fit_constants
from apss_jax.calibration.constants import Constant
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.metrics import absolute_error_percent, mean
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.subject import Subject
from apss_jax.schema.calibration import FigureFit
from apss_jax.schema.errors import mistake
from apss_jax.schema.stack import Stack

MOST_REPEAT_RATIO = 1.5  # between runs of one layout; published repeats differ by 1.3 at most
MOST_RATIO = 3.0  # between two layouts, of measured over predicted, after the fit
MOST_FACTOR = 5.0  # of measured over predicted before it

PerRun = Float[np.ndarray, " batch"]
What = Literal["step time", "memory"]


@dataclass(frozen=True, eq=False)
class MeasuredFigure:
    """One measured figure of different runs: repeats are one, by their geometric mean."""

    subjects: tuple[Subject, ...]
    measured: PerRun  # logarithms
    labels: tuple[str, ...]
    what: What
    num_runs: int

    @staticmethod
    def of(
        comparison: Comparison, values: PerRun, labels: Sequence[str], what: What
    ) -> MeasuredFigure:
        """Returns one figure of the runs that have it; raises `InputError` for unlike repeats."""
        groups: dict[object, list[int]] = {}
        for i in np.flatnonzero(np.isfinite(values)).tolist():
            groups.setdefault(_configuration(comparison.subjects[i]), []).append(i)
        for members in groups.values():
            _refuse_repeats(values[members], [labels[i] for i in members], what)
        firsts = [members[0] for members in groups.values()]
        return MeasuredFigure(
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

    def fit(
        self,
        base: Stack,
        constants: Sequence[Constant],
        noise: float,
        *,
        overall_first: bool = False,
    ) -> ConstantFit | None:
        """Returns the fit, None where nothing was measured; raises `InputError`."""
        if not self.subjects:
            return None
        self._refuse_far(base)
        fit = fit_constants(
            base, constants, self.predicted, self.measured, noise, overall_first=overall_first
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
