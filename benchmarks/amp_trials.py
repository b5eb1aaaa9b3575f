"""AMP's measured trials against our predictions: AMP's layouts and partitions through `estimate`.

Needs AMP's table of trials (the first argument). Prints, for each of the three problems, mean
absolute percentage error, Spearman rank correlation, and the measured time of our first choice.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.planning.estimate import estimate_plan, plan_of, stages_of
from apss_jax.schema.layout import Layout

CASES = {  # experiment -> model, cluster, rows before and after the layers in AMP's layer list
    "homogeneous": ("gpt2-345m-amp", "amp-homogeneous", 2, 4),
    "het_cluster": ("gpt2-345m-amp", "amp-het-cluster", 2, 4),
    "het_model": ("transgan-amp", "amp-het-model", 0, 0),
}


@dataclass(frozen=True)
class Trial:
    """One of AMP's trials that finished."""

    layout: Layout
    global_batch: int
    split: tuple[int, ...]
    amp_s: float
    measured_s: float


def trials(file: Path, experiment: str) -> Iterator[Trial]:
    """Yields the finished trials of one experiment."""
    before, after = CASES[experiment][2:]
    with file.open() as lines:
        for row in csv.DictReader(lines):
            if row["experiment"] != experiment or row["measured_s"] in ("", "inf"):
                continue
            bounds = [int(b) for b in row["partition"].split()]
            layers = np.clip(np.array(bounds) - before, 0, bounds[-1] - before - after)
            yield Trial(
                Layout(
                    int(row["tp"]), int(row["pp"]), int(row["dp"]),
                    micro_batch=int(row["mbs"]), zero_stage=0,
                ),
                int(row["gbs"]),
                tuple(np.diff(layers).tolist()),
                float(row["amp_predicted_s"]),
                float(row["measured_s"]),
            )  # fmt: skip


def predict(experiment: str, found: list[Trial]) -> np.ndarray:
    """Returns our step time of each trial."""
    name, cluster = CASES[experiment][:2]
    model, profile = load_model(name), load_cluster(cluster)
    times = []
    for trial in found:
        plan = plan_of(trial.layout, trial.global_batch)
        plan = plan.model_copy(update={"stages": stages_of(plan, trial.split)})
        cost = estimate_plan(model, profile, plan).plan.cost
        assert cost is not None, plan
        times.append(cost.step_time_s)
    return np.array(times)


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the rank correlation, ties by their mean rank."""
    ranks = [np.array([np.mean([(v < x).sum(), (v <= x).sum() - 1]) for x in v]) for v in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


def report(name: str, predicted: np.ndarray, measured: np.ndarray) -> str:
    """Returns one line of figures."""
    error = np.abs(predicted / measured - 1)
    first = measured[np.argsort(predicted, kind="stable")]
    return (
        f"{name:12} {len(measured):4} {100 * error.mean():7.1f} {100 * np.median(error):7.1f} "
        f"{spearman(predicted, measured):9.3f} {first[0]:8.2f} {first[:3].min():8.2f} "
        f"{measured.min():8.2f}"
    )


def main() -> None:
    """Prints the table."""
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/amp/amp_trials.csv")
    if not file.exists():
        print(f"{file} is not here: name AMP's table of trials", file=sys.stderr)
        return
    print(f"{'':18} {'n':>4} {'MAPE %':>7} {'median':>7} {'Spearman':>9}", end=" ")
    print(f"{'first s':>8} {'of 3':>8} {'best':>8}")
    for experiment in CASES:
        found = list(trials(file, experiment))
        measured = np.array([t.measured_s for t in found])
        print("ours ", report(experiment, predict(experiment, found), measured))
        print("AMP  ", report(experiment, np.array([t.amp_s for t in found]), measured))


if __name__ == "__main__":
    main()
