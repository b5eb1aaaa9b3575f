"""The files of a network: what is read back, and what is said of damaged or foreign ones."""

import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from apss_jax.policy.batched import new_order_params, new_params
from apss_jax.policy.network import NetworkConfig
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.weights import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Policy,
    checkpoint_folder,
    read_policy,
    shipped_policy,
    write_policy,
)
from apss_jax.schema.errors import InputError

CONFIG = NetworkConfig(width=8, heads=2, blocks=1, place_width=4)
ORDERS = OrderConfig(width=8, hidden=8, rounds=1)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    policy = Policy(CONFIG, new_params(CONFIG, 3), ORDERS, new_order_params(ORDERS, 3))
    write_policy(tmp_path, policy, {"told": 1})
    return tmp_path


def _truncate(folder: Path) -> None:
    data = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(data[: len(data) // 2])


def _change_tensor(folder: Path, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    name = sorted(tensors)[0]
    save_file({**tensors, name: change(tensors[name])}, folder / WEIGHTS_FILE)


def _drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, folder / WEIGHTS_FILE)


def _change_config(folder: Path, key: str, value: object) -> None:
    document = json.loads((folder / CONFIG_FILE).read_text())
    (folder / CONFIG_FILE).write_text(json.dumps({**document, key: value}))


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (_truncate, "whole safetensors file"),
    "no weights": (lambda folder: (folder / WEIGHTS_FILE).unlink(), "whole safetensors file"),
    "a weight is missing": (_drop_tensor, "is absent"),
    "another shape": (lambda f: _change_tensor(f, lambda v: v[..., :-1]), "its shape must be"),
    "not a number": (lambda f: _change_tensor(f, lambda v: v * np.nan), "finite number"),
    "no config": (lambda folder: (folder / CONFIG_FILE).unlink(), "readable JSON"),
    "another schema": (lambda f: _change_config(f, "schema", "x/1"), "it must be apss.dpsn/1"),
    "other features": (lambda f: _change_config(f, "piece_features", 3), "this version reads"),
    "sizes": (lambda f: _change_config(f, "network", {"width": 8}), "its keys must be"),
    "size": (
        lambda f: _change_config(f, "orders", {"width": -1, "hidden": 8, "rounds": 1}),
        "from 1 to 1024",
    ),
}


def test_what_is_written_is_read(folder: Path) -> None:
    """Every weight comes back bit for bit, and so do the sizes."""
    found = read_policy(folder)
    assert found.config == CONFIG
    assert found.order_config == ORDERS
    for a, b in zip(
        jax.tree.leaves(found.params), jax.tree.leaves(new_params(CONFIG, 3)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_refused(folder: Path, fault: str) -> None:
    """The one message names the file, what is wrong with it, and what to do."""
    damage, rule = FAULTS[fault]
    damage(folder)
    with pytest.raises(InputError) as raised:
        read_policy(folder)
    (mistake,) = raised.value.mistakes
    assert str(folder) in (mistake.file or "")
    assert rule in mistake.sentence()
    assert "Install the package again" in mistake.remedy


def test_a_foreign_safetensors_file(folder: Path) -> None:
    """Weights of something else are refused by the name of the first one."""
    save_file({"other.weight": np.zeros(3, np.float32)}, folder / WEIGHTS_FILE)
    with pytest.raises(InputError, match="must be"):
        read_policy(folder)


def test_the_shipped_network_is_found() -> None:
    """A checkout holds it, with its card and its metrics beside."""
    assert shipped_policy().config == NetworkConfig()
    files = {file.name for file in checkpoint_folder().iterdir()}
    assert {CONFIG_FILE, WEIGHTS_FILE, "README.md", "metrics.jsonl"} <= files
