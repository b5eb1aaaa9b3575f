"""Draws how the shipped network learned, from the metrics beside it, into `docs/`.

Solid lines are the loss, averaged over 100 steps; points are the gap of the likeliest partition to
the exact closed-form solution on 128 held-out problems (below zero: better than it).
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from apss_jax.policy.weights import checkpoint_folder

TARGET = Path(__file__).parents[1] / "docs" / "dpsn-training.svg"
FAMILIES = ("original", "closed", "simulated", "interleaved")


Metrics = list[dict[str, Any]]


def read_metrics() -> Metrics:
    """Returns the figures of every step that was kept."""
    lines = (checkpoint_folder() / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def draw_losses(axes: Axes, metrics: Metrics, prefix: str = "") -> None:
    """Draws the loss of each objective of a head, averaged over 100 steps."""
    for objective in ("imitation", "contrastive", "info_nce"):
        rows = [row for row in metrics if row["objective"] == prefix + objective]
        steps, values = [row["step"] for row in rows], [row["loss"] for row in rows]
        means = [sum(values[max(0, i - 9) : i + 1]) / min(i + 1, 10) for i in range(len(values))]
        if rows:
            axes.plot(steps, means, label=objective)
    axes.legend()


def main() -> None:
    """Writes the picture and prints where it is."""
    metrics = read_metrics()
    figure, (losses, gaps, orders) = plt.subplots(1, 3, figsize=(13, 3.6))
    draw_losses(losses, metrics)
    losses.set(xlabel="step", ylabel="loss of the cuts")
    draw_losses(orders, metrics, "orders_")
    orders.set(xlabel="step", ylabel="loss of the orders of devices")
    for family in FAMILIES:
        key = f"{family}_greedy_percent"
        rows = [row for row in metrics if key in row]
        gaps.plot([row["step"] for row in rows], [row[key] for row in rows], "o-", label=family)
    gaps.axhline(0.0, color="grey", linewidth=0.5)
    gaps.set(xlabel="step", ylabel="likeliest partition, % above exact closed form")
    gaps.legend()
    figure.tight_layout()
    figure.savefig(TARGET, metadata={"Date": None})
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
