"""A training run: stopped and gone on with, it ends as if it had not been stopped."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from apss_jax.partitioning.portfolio import block_orders
from apss_jax.policy.batched import Params, new_order_params, new_params
from apss_jax.policy.network import NetworkConfig
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.weights import read_policy
from apss_jax.schema.errors import InputError
from apss_jax.training import run
from apss_jax.training.checkpoint import METRICS_FILE, STATE_FILE, load_state
from apss_jax.training.objective import costs_of_all
from apss_jax.training.order_pool import OrderPoolPlan, order_costs_s, padded_orders
from apss_jax.training.order_trainer import OrderTrainingConfig, order_step
from apss_jax.training.pool import PoolPlan
from apss_jax.training.steps import Report
from apss_jax.training.trainer import TrainingConfig, TrainingState, train_step

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
    pools=(PoolPlan((("closed_few", 12), ("simulated_few", 12)), (4, 12, 6), 8),),
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
    assert lines[-1]["objective"] == "orders_info_nce"


def test_training_moves_the_weights_and_lowers_the_loss(whole: Path) -> None:
    """Both heads leave their first weights, and imitate the problems of a first step better."""
    for first_step in (_first_step, _first_order_step):
        trained, fresh = load_state(whole, CONFIG), load_state(whole, CONFIG)
        fresh.params = new_params(CONFIG.network, CONFIG.seed)
        fresh.orders.params = new_order_params(ORDERS.network, CONFIG.seed)
        _check_moved(fresh.params, trained.params)
        _check_moved(fresh.orders.params, trained.orders.params)
        assert first_step(trained) < first_step(fresh) - 0.01


def _check_moved(before: Params, after: Params) -> None:
    pairs = list(zip(*map(jax.tree.leaves, (before, after)), strict=True))
    moved = [bool(np.any(np.asarray(a) != np.asarray(b))) for a, b in pairs]
    assert sum(moved) > len(moved) / 2


def _first_step(state: TrainingState) -> float:
    """Returns the imitation loss on what the first step draws, before that step moves anything."""
    state.step = 0
    return float(train_step(CONFIG, state)["loss"])


def _first_order_step(state: TrainingState) -> float:
    """Returns the same of the order head."""
    state.orders.step = 0
    return float(order_step(ORDERS, CONFIG.seed, state.orders)["loss"])


def test_better_cuts_than_the_best_known_are_kept(whole: Path) -> None:
    """From equal layers as the best known, a step finds better ones; none gets worse."""
    state = load_state(whole, CONFIG)
    (pool,) = state.pools
    pool.elite_ends[:] = pool.heuristics[:, 0]
    pool.elite_s[:] = costs_of_all(pool.objectives, pool.elite_ends[:, None])[:, 0]
    known_s, state.step = pool.elite_s.copy(), CONFIG.steps - 1
    assert train_step(CONFIG, state)["objective"] == "contrastive"
    assert np.all(pool.elite_s <= known_s)
    assert np.sum(pool.elite_s < known_s) >= 2
    found_s = costs_of_all(pool.objectives, pool.elite_ends[:, None])[:, 0]
    np.testing.assert_array_equal(found_s, pool.elite_s)


def test_better_orders_than_the_best_known_are_kept(whole: Path) -> None:
    """From the worst order of types together as the best known, a step finds better ones."""
    state = load_state(whole, CONFIG).orders
    (pool,) = state.pools
    for row, instance in enumerate(pool.instances):
        orders = block_orders(instance)
        costs_s = order_costs_s(instance, orders)
        worst = np.where(np.isfinite(costs_s), costs_s, 0.0).argmax()
        pool.elite_orders[row] = padded_orders([orders[worst]], pool.elite_orders.shape[1])[0]
        pool.elite_s[row] = costs_s[worst]
    known_s, state.step = pool.elite_s.copy(), ORDERS.steps - 1
    assert order_step(ORDERS, CONFIG.seed, state)["objective"] == "orders_info_nce"
    assert np.all(pool.elite_s <= known_s)
    assert np.sum(pool.elite_s < known_s) >= 2


def test_a_state_of_other_settings_is_refused(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the file and both settings, and comes before problems are drawn."""
    monkeypatch.delattr("apss_jax.training.checkpoint.new_state")
    other = TrainingConfig(steps=9, network=CONFIG.network, pools=CONFIG.pools, shares=(1.0,))
    with pytest.raises(InputError, match="this run has"):
        load_state(whole, other)


def test_a_damaged_state_is_refused(whole: Path, tmp_path: Path) -> None:
    """A state that was cut short is no state; the remedy says how to begin anew."""
    data = (whole / STATE_FILE).read_bytes()
    (tmp_path / STATE_FILE).write_bytes(data[:100])
    with pytest.raises(InputError, match="Remove it"):
        load_state(tmp_path, CONFIG)


@pytest.mark.parametrize("lost", ["cuts.optimizer.0", "pools.0.ends", "order_step"])
def test_a_state_without_one_of_its_parts_is_refused(
    whole: Path, tmp_path: Path, lost: str
) -> None:
    """Settings that agree do not make a whole state of one that has lost something."""
    with safe_open(whole / STATE_FILE, "numpy") as opened:
        told = opened.metadata()
        names = opened.keys()
        tensors = {name: opened.get_tensor(name) for name in names if name != lost}
    told = {name: value for name, value in told.items() if name != lost}
    save_file(tensors, tmp_path / STATE_FILE, told)
    with pytest.raises(InputError, match=lost):
        load_state(tmp_path, CONFIG)
