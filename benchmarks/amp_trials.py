"""AMP's measured trials against our predictions: AMP's layouts and partitions through `estimate`.

Needs AMP's table of trials (the first argument). Prints, for each of the three problems, mean
absolute percentage error, Spearman rank correlation, and the measured time of our first choice.
Then the same for the two clusters that ran GPT-2, each predicted by the `deepspeed` stack as
calibrated on the other's trials.
"""

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apss_jax.calibration.own_runs import calibrate_stack
from apss_jax.calibration.prediction import predict_runs
from apss_jax.importers.clusters import load_cluster, load_stack
from apss_jax.importers.load import load_model
from apss_jax.planning.estimate import estimate_plan, plan_of, stages_of
from apss_jax.schema.layout import Layout
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Stack

CASES = {  # experiment -> model, cluster, rows before and after the layers in AMP's layer list
    "homogeneous": ("gpt2-345m-amp", "amp-homogeneous", 2, 4),
    "het_cluster": ("gpt2-345m-amp", "amp-het-cluster", 2, 4),
    "het_model": ("transgan-amp", "amp-het-model", 0, 0),
}

# The two clusters of one model and software, as a table of runs names them.
CLUSTERS = {
    "homogeneous": ("T4-16GB", "PCIe intra-node; AWS 50 Gb/s per node"),
    "het_cluster": ("T4-16GB+V100-16GB", "NVLink/PCIe mix; AWS 10-50 Gb/s"),
}
GPT = {
    "num_gpus": 16, "gpus_per_node": 4, "model_name": "GPT-2 345M", "num_layers": 24,
    "hidden": 1024, "ffn_hidden": 4096, "num_heads": 16, "num_kv_heads": 16, "vocab": 52256,
    "seq_len": 1024, "zero_stage": 0, "precision": "fp16", "schedule": "1f1b",
    "framework": "DeepSpeed + Megatron-LM v1.1.5 3D",
}  # fmt: skip


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


def runs_of(experiment: str, found: list[Trial]) -> list[Run]:
    """Returns the trials of one cluster as measured runs."""
    gpu, network = CLUSTERS[experiment]
    return [
        Run(
            **GPT,
            run_id=f"{experiment} {i}",
            gpu_model=gpu,
            interconnect=network,
            global_batch=trial.global_batch,
            micro_batch=trial.layout.micro_batch,
            dp=trial.layout.data_parallel,
            tp=trial.layout.tensor_parallel,
            pp=trial.layout.pipeline_parallel,
            stage_boundaries=(0, *np.cumsum(trial.split).tolist()),
            step_time_s=trial.measured_s,
        )
        for i, trial in enumerate(found)
    ]


def transferred(tested: str, found: dict[str, list[Trial]]) -> tuple[Stack, np.ndarray]:
    """Returns the stack calibrated on the other cluster alone, and what it predicts of this one."""
    other = next(name for name in CLUSTERS if name != tested)
    stack = calibrate_stack(runs_of(other, found[other]), base=load_stack("deepspeed")).stack
    figures = predict_runs(runs_of(tested, found[tested]), stack=stack).figures
    return stack, figures.step_time_s


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
    known = {experiment: list(trials(file, experiment)) for experiment in CASES}
    for experiment, found in known.items():
        measured = np.array([t.measured_s for t in found])
        print("ours ", report(experiment, predict(experiment, found), measured))
        print("AMP  ", report(experiment, np.array([t.amp_s for t in found]), measured))
    print("calibrated on the other cluster")
    for experiment in CLUSTERS:
        measured = np.array([t.measured_s for t in known[experiment]])
        print("ours ", report(experiment, transferred(experiment, known)[1], measured))


if __name__ == "__main__":
    main()
