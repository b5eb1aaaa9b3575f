"""The shipped network was trained on the costs that the code has now, and its card says so."""

import json

import pytest

from apss_jax.policy.weights import CONFIG_FILE, checkpoint_folder
from apss_jax.training import version
from apss_jax.training.version import cost_fingerprint


def _told() -> dict[str, object]:
    return json.loads((checkpoint_folder() / CONFIG_FILE).read_text())


def test_costs_are_those_of_the_training() -> None:
    """Objective, simulator and problems give what they gave when the network was trained."""
    assert _told()["cost_fingerprint"] == cost_fingerprint()


def test_other_costs_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint is of what problems cost: other problems have another one."""
    monkeypatch.setattr(version, "_FAMILIES", ("closed",))
    assert version.cost_fingerprint() != _told()["cost_fingerprint"]


def test_the_card_names_the_command_and_its_settings() -> None:
    """Steps and seed of the card are those of the configuration."""
    training = _told()["training"]
    assert isinstance(training, dict)
    card = (checkpoint_folder() / "README.md").read_text()
    assert f"{training['steps']:,} steps for cuts" in card
    assert f"seed {training['seed']}" in card
    assert "python -m apss_jax.train" in card
