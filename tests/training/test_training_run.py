"""A training run: stopped and gone on with, it ends as if it had not been stopped."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from apss_jax.policy.network import NetworkConfig
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.weights import read_policy
from apss_jax.schema.errors import InputError
from apss_jax.training import run
from apss_jax.training.checkpoint import METRICS_FILE, STATE_FILE, load_state
from apss_jax.training.order_pool import OrderPoolPlan
from apss_jax.training.order_trainer import OrderTrainingConfig, Report
from apss_jax.training.pool import PoolPlan
from apss_jax.training.trainer import TrainingConfig

ORDERS = OrderTrainingConfig(
    steps=4,
    warm_start=0.5,
    samples=3,
    network=OrderConfig(width=8, hidden=8, rounds=1),
    pools=(OrderPoolPlan((((4, 5), 8),), (8, 100, 1024), 4),),
    shares=(1.0,),
)
CONFIG = TrainingConfig(
    steps=8,
    warm_start=0.5,
    samples=3,
    network=NetworkConfig(width=8, heads=2, blocks=1, place_width=4),
    pools=(PoolPlan((("closed_few", 12), ("simulated_few", 12)), (4, 12), 8),),
    shares=(1.0,),
    orders=ORDERS,
)


class _Killed(Exception):
    """What ends a run in the middle here."""


def _train(folder: Path, until: int | None = None) -> list[Report]:
    """Runs until a step, or to the end; returns the reports."""
    seen: list[Report] = []

    def on_report(report: Report) -> None:
        seen.append(report)
        if until is not None and report["step"] == until:
            raise _Killed

    run.run_training(CONFIG, folder, measured_every=0, on_report=on_report)
    return seen


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    _train(folder)
    return folder


@pytest.mark.parametrize("stopped_at", [3, 7, 11])
def test_a_run_that_was_killed_ends_the_same(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    """Weights and metrics are those of the uninterrupted run, bit for bit."""
    monkeypatch.setattr(run, "SAVED_EVERY", 2)
    with pytest.raises(_Killed):
        _train(tmp_path, until=stopped_at)
    resumed = _train(tmp_path)
    assert resumed[0]["step"] == stopped_at
    whole_run, in_two = read_policy(whole), read_policy(tmp_path)
    for a, b in zip(jax.tree.leaves(whole_run.params), jax.tree.leaves(in_two.params), strict=True):
        np.testing.assert_array_equal(a, b)
    heads = (whole_run.order_params, in_two.order_params)
    for a, b in zip(*map(jax.tree.leaves, heads), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (tmp_path / METRICS_FILE).read_text() == (whole / METRICS_FILE).read_text()


def test_metrics_hold_a_line_for_each_step(whole: Path) -> None:
    """Steps count through both heads; warm starts imitate."""
    lines = [json.loads(line) for line in (whole / METRICS_FILE).read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["objective"] for line in lines[3:5]] == ["imitation", "contrastive"]
    assert lines[-1]["objective"] == "orders_contrastive"


def test_training_lowers_the_loss_and_keeps_the_best(whole: Path) -> None:
    """No elite is worse than a solution known at the start."""
    fresh = run.load_state(whole / "nowhere", CONFIG)
    trained = load_state(whole, CONFIG)
    assert np.all(trained.pools[0].elite_s <= fresh.pools[0].elite_s * (1 + 1e-12))


def test_a_state_of_other_settings_is_refused(whole: Path) -> None:
    """The message names the file and both settings."""
    other = TrainingConfig(steps=9, network=CONFIG.network, pools=CONFIG.pools, shares=(1.0,))
    with pytest.raises(InputError, match="this run has"):
        load_state(whole, other)


def test_a_damaged_state_is_refused(whole: Path, tmp_path: Path) -> None:
    """A state that was cut short is no state; the remedy says how to begin anew."""
    data = (whole / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(data[:100])
    with pytest.raises(InputError, match="Remove it"):
        load_state(tmp_path, CONFIG)
