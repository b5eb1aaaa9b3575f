"""What measured runs say about constants: one misfit a run, with one rule of weighting for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from jaxtyping import Float, Int

from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.prediction import Figures
from apss_jax.calibration.subject import Subject

PerRun = Float[np.ndarray, " batch"]
PerChosen = Float[np.ndarray, " samples"]
Indices = Int[np.ndarray, " samples"]
Quantity = Literal["step_time", "memory"]

# Misfits are in units of what such a model misses by even with the best constants.
ERROR_SCALE: Final[dict[Quantity, float]] = {"step_time": 0.04, "memory": 0.1}
MAX_ROWS_PER_SOURCE: Final = 200  # more rows of one cluster and model say little more
LEAST_CHANCE: Final = 1e-12


@dataclass(frozen=True, eq=False)
class Evidence:
    """Runs that were measured, and what was: NaN and -1 where a run lacks it."""

    quantity: Quantity
    subjects: tuple[Subject, ...]
    measured: PerRun  # seconds or bytes
    ran_out: Int[np.ndarray, " batch"]  # 1 or 0, believed only where nothing was measured
    weight: PerRun  # of each run's squared misfit

    def misfits(self, figures: Figures, rows: Indices) -> PerChosen:
        """Returns the misfit of some runs, from their figures in the same order.

        It is the logarithm of predicted over measured; of a run that only ran out of memory or did
        not, the deviance of that outcome.
        """
        scale = ERROR_SCALE[self.quantity]
        if self.quantity == "step_time":
            return np.log(figures.step_time_s / self.measured[rows]) / scale
        ratio = np.log(figures.memory_bytes / self.measured[rows]) / scale
        failed = self.ran_out[rows] == 1
        chance = np.where(failed, figures.oom_probability, 1.0 - figures.oom_probability)
        deviance = np.sqrt(-2.0 * np.log(np.clip(chance, LEAST_CHANCE, 1.0)))
        return np.where(np.isfinite(ratio), ratio, np.where(failed, -deviance, deviance))


def step_time_evidence(comparison: Comparison) -> Evidence:
    """Returns what the runs with a step time say."""
    rows = np.flatnonzero(comparison.is_timed)
    return _evidence("step_time", comparison, rows, comparison.step_time_s)


def memory_evidence(comparison: Comparison, label_sources: Sequence[str]) -> Evidence:
    """Returns what the runs with a peak memory say, and the outcomes of some sources."""
    believed = [s.run.source_name in label_sources for s in comparison.subjects]
    labelled = np.array(believed) & (comparison.ran_out >= 0)
    rows = np.flatnonzero(np.isfinite(comparison.memory_bytes) | labelled)
    return _evidence("memory", comparison, rows, comparison.memory_bytes)


def _evidence(
    quantity: Quantity, comparison: Comparison, rows: Indices, measured: PerRun
) -> Evidence:
    sources = [comparison.subjects[i].run.source_name for i in rows]
    return Evidence(
        quantity=quantity,
        subjects=tuple(comparison.subjects[i] for i in rows),
        measured=measured[rows],
        ran_out=comparison.ran_out[rows],
        weight=_weights_when_thinned(sources),
    )


def source_weights(sources: Sequence[str]) -> PerRun:
    """Returns a weight for each row, by which a source of n rows counts as sqrt(n).

    Rows of one source share its cluster, framework and way of measuring, so they are not n
    independent pieces of evidence.
    """
    count = Counter(sources)
    return np.array([1.0 / np.sqrt(count[source]) for source in sources])


def _weights_when_thinned(sources: Sequence[str]) -> PerRun:
    """Returns those weights for a source of which only some rows are fitted."""
    count = Counter(sources)
    fitted = [min(count[source], MAX_ROWS_PER_SOURCE) for source in sources]
    return source_weights(sources) * [count[s] / n for s, n in zip(sources, fitted, strict=True)]


def thinned(evidence: Evidence) -> Indices:
    """Returns at most a few hundred rows of each source, evenly spaced in the table's order."""
    rows: dict[str, list[int]] = {}
    for i, subject in enumerate(evidence.subjects):
        rows.setdefault(subject.run.source_name, []).append(i)
    kept = []
    for members in rows.values():
        size = min(len(members), MAX_ROWS_PER_SOURCE)
        kept += [members[i] for i in np.linspace(0, len(members) - 1, size).round().astype(int)]
    return np.array(sorted(kept), dtype=int)
