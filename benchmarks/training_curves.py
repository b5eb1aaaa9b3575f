"""Draws how the shipped network learned, from the metrics beside it, into `docs/`.

Solid lines are the loss, averaged over 100 steps; points are the gap of the likeliest partition to
the exact closed-form solution on 128 held-out problems (below zero: better than it).
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from apss_jax.policy.weights import checkpoint_folder

TARGET = Path(__file__).parents[1] / "docs" / "dpsn-training.svg"
FAMILIES = ("original", "closed", "simulated", "interleaved")


def read_metrics() -> list[dict[str, float]]:
    """Returns the figures of every step that was kept."""
    lines = (checkpoint_folder() / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    """Writes the picture and prints where it is."""
    metrics = [row for row in read_metrics() if not str(row["objective"]).startswith("orders")]
    figure, (losses, gaps) = plt.subplots(1, 2, figsize=(10, 3.6))
    for objective in ("imitation", "contrastive"):
        rows = [row for row in metrics if row["objective"] == objective]
        steps, values = [row["step"] for row in rows], [row["loss"] for row in rows]
        means = [sum(values[max(0, i - 9) : i + 1]) / min(i + 1, 10) for i in range(len(values))]
        losses.plot(steps, means, label=objective)
    losses.set(xlabel="step", ylabel="loss")
    losses.legend()
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
