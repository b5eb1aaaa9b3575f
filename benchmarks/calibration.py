"""Calibration on a few runs of a cluster, scored on its other runs.

Needs a table of published runs (the first argument). Each cluster (source, GPU and framework) is
predicted by the generic stack, as if its framework were unknown; then by that stack calibrated on
the run of median size, or on those at the quartiles. Size is parameters x tokens / devices. Errors
are of the runs that were not used, mean / median in percent; inside: share of them within the 80 %
interval.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.metrics import absolute_error_percent
from apss_jax.calibration.own_runs import calibrate_stack
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.subject import Subject
from apss_jax.cost.compilation import keep_compiled_programs
from apss_jax.importers.clusters import load_stack
from apss_jax.importers.frameworks import framework_named
from apss_jax.schema.runs import Run, read_runs
from apss_jax.schema.stack import Stack

SOURCES = ("aleph", "vtrain-m", "bloom", "dgxc", "mosaic")
QUANTILES = {
    "1 run": (0.5,),
    "3 runs": (0.25, 0.5, 0.75),
    "7 runs": tuple(i / 8 for i in range(1, 8)),
}
FEWEST = 12  # runs of a cluster, below which little is left to score


def size_of(subject: Subject) -> float:
    """Returns the work of a step on one device, in parameters times tokens."""
    tokens = subject.global_batch * subject.seq_len
    return subject.model.num_parameters * tokens / subject.cluster.num_devices


def timed_by_size(runs: Sequence[Run], stack: Stack) -> list[Run]:
    """Returns the runs with a usable step time, the smallest first."""
    comparison = Comparison.of(predict_runs(runs, stack=stack))
    timed = [s for s, yes in zip(comparison.subjects, comparison.is_timed, strict=True) if yes]
    return [subject.run for subject in sorted(timed, key=size_of)]


@dataclass(frozen=True)
class Score:
    """Errors in percent of some runs, and which of them lay within their interval."""

    error: np.ndarray
    inside: np.ndarray

    @staticmethod
    def of(runs: Sequence[Run], stack: Stack) -> "Score":
        """Returns the score of a stack."""
        found = Comparison.of(predict_runs(runs, stack=stack))
        figures, measured_s = found.predicted, found.step_time_s
        error = absolute_error_percent(figures.step_time_s, measured_s)
        return Score(error, (figures.low_s <= measured_s) & (measured_s <= figures.high_s))

    @staticmethod
    def joined(parts: Sequence["Score"]) -> "Score":
        """Returns the score of all runs together."""
        return Score(*(np.concatenate([getattr(p, n) for p in parts]) for n in ("error", "inside")))

    def text(self) -> str:
        """Returns mean, median and coverage."""
        share = 100 * self.inside.mean()
        return f"{self.error.mean():5.1f} /{np.median(self.error):5.1f}, {share:3.0f} % inside"


def scores(runs: Sequence[Run], generic: Stack, quantiles: Sequence[float]) -> list[Score]:
    """Returns the scores before and after calibration, on the runs that were not used."""
    used = [runs[int(q * (len(runs) - 1))] for q in quantiles]
    rest = [run for run in runs if run not in used]
    done = calibrate_stack(used, base=generic)
    moved = [f"{c.constant} {c.before:.3g} > {c.after:.3g}" for c in done.document.fitted]
    print(f"    {len(rest):4} of {runs[0].gpu_model}, {runs[0].framework}: {', '.join(moved)}")
    return [Score.of(rest, stack) for stack in (generic, done.stack)]


def clusters_of(runs: Sequence[Run], generic: Stack) -> list[list[Run]]:
    """Returns the timed runs of each GPU and framework, where there are enough."""
    found: dict[tuple[str | None, str], list[Run]] = {}
    for run in timed_by_size(runs, generic):
        found.setdefault((run.gpu_model, framework_named(run.framework).stack), []).append(run)
    return [group for group in found.values() if len(group) >= FEWEST]


def main() -> None:
    """Prints the figures of every source."""
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/runs/published_runs.csv")
    if not file.exists():
        print(f"{file} is not here: name a table of published runs", file=sys.stderr)
        return
    keep_compiled_programs()
    generic = load_stack("generic")
    runs = read_runs(file)
    for source in SOURCES:
        groups = clusters_of([run for run in runs if run.source_name == source], generic)
        for label, quantiles in QUANTILES.items():
            print(f"{source}, {label} of each cluster")
            parts = [scores(group, generic, quantiles) for group in groups]
            before, after = (Score.joined(column).text() for column in zip(*parts, strict=True))
            print(f"  generic {before}; calibrated {after}")


if __name__ == "__main__":
    main()
