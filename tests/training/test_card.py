"""The shipped network was trained on the costs that the code has now, and its card says so."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from apss_jax.cli.defaults import TRAIN_STEPS
from apss_jax.policy.weights import CONFIG_FILE, checkpoint_folder
from apss_jax.training import version
from apss_jax.training.trainer import TrainingConfig
from apss_jax.training.version import cost_fingerprint


def _told() -> dict[str, Any]:
    return json.loads((checkpoint_folder() / CONFIG_FILE).read_text())


def _training() -> dict[str, Any]:
    return _told()["training"]


def _card() -> str:
    return (checkpoint_folder() / "README.md").read_text()


def test_costs_are_those_of_the_training() -> None:
    """Objective, simulator and problems give what they gave when the network was trained."""
    assert _told()["cost_fingerprint"] == cost_fingerprint()


def test_other_costs_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint is of what problems cost: other problems have another one."""
    monkeypatch.setattr(version, "_FAMILIES", ("closed",))
    assert version.cost_fingerprint() != _told()["cost_fingerprint"]


def test_the_card_names_the_command_and_its_settings() -> None:
    """Steps and seed of the card are those of the configuration."""
    training, card = _training(), _card()
    steps = f"{training['steps']:,} steps for cuts, {training['orders']['steps']:,} for orders"
    assert f"{steps}, seed {training['seed']}" in card
    assert f"drawn from seed {training['seed'] + 1}" in card
    assert "python -m apss_jax.train" in card


def test_the_command_without_options_is_the_training_of_the_card() -> None:
    """The settings in the configuration are the defaults, so that the command gives them again."""
    defaults = json.loads(json.dumps(asdict(TrainingConfig())))
    assert {key: value for key, value in defaults.items() if key != "network"} == _training()
    assert int(TRAIN_STEPS) == _training()["steps"]


def test_the_card_counts_the_problems_that_were_drawn() -> None:
    """Pipelines and mixed clusters of all pools, as the configuration has them."""
    training, card = _training(), _card()
    pipelines = _drawn(training["pools"])
    clusters = _drawn(training["orders"]["pools"])
    assert f"{pipelines:,} pipelines, {clusters:,} mixed clusters" in card


def _drawn(pools: list[dict[str, Any]]) -> int:
    return sum(count for pool in pools for _, count in pool["counts"])
