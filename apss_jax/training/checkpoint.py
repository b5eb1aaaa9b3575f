"""The state of a training run on disk: written whole or not at all, read back bit for bit."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from apss_jax.policy.weights import flat, nested
from apss_jax.schema.errors import InputError, mistake
from apss_jax.training.order_trainer import draw_order_pools
from apss_jax.training.steps import Report
from apss_jax.training.trainer import TrainingConfig, TrainingState, new_state

STATE_FILE: Final = "state.safetensors"
METRICS_FILE: Final = "metrics.jsonl"


def save_state(folder: Path, config: TrainingConfig, state: TrainingState) -> None:
    """Writes the state beside the old one, then puts it in its place."""
    from safetensors.numpy import save_file

    tensors = _tensors_of("cuts", state.params, state.optimizer)
    tensors |= _tensors_of("orders", state.orders.params, state.orders.optimizer)
    for index, pool in enumerate(state.pools):
        tensors[f"pools.{index}.ends"] = pool.elite_ends
        tensors[f"pools.{index}.costs"] = pool.elite_s
    for index, order_pool in enumerate(state.orders.pools):
        tensors[f"order_pools.{index}.orders"] = order_pool.elite_orders
        tensors[f"order_pools.{index}.costs"] = order_pool.elite_s
    steps = {"step": str(state.step), "order_step": str(state.orders.step)}
    told = {**steps, "config": _text(config)}
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{STATE_FILE}.part"
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    save_file(arrays, unfinished, metadata=told)
    os.replace(unfinished, folder / STATE_FILE)


def load_state(folder: Path, config: TrainingConfig) -> TrainingState:
    """Returns the state to go on from: the saved one, or a new one where none is.

    Raises `InputError` if the state of the folder belongs to other settings or is damaged; before
    any problem is drawn, where the file alone tells.
    """
    file = folder / STATE_FILE
    if not file.exists():
        return new_state(config)
    tensors, told = _read(file)
    if told.get("config") != _text(config):
        raise mistake(
            *("config", told.get("config"), f"this run has {_text(config)}"),
            "Choose another --out, or give the settings of the run to go on with",
            file=str(file),
        )
    state = new_state(config)
    try:
        _restore(state, config, tensors, told)
    except (KeyError, ValueError) as error:  # a name that is missing, a size or step that is none
        raise _damaged(file, str(error)) from error
    return state


def _restore(
    state: TrainingState,
    config: TrainingConfig,
    tensors: dict[str, np.ndarray],
    told: dict[str, Any],
) -> None:
    """Puts what was saved into a new state."""
    state.step, state.orders.step = int(told["step"]), int(told["order_step"])
    state.params, state.optimizer = _trees_of("cuts", tensors, state.optimizer)
    orders = state.orders
    orders.params, orders.optimizer = _trees_of("orders", tensors, orders.optimizer)
    for index, pool in enumerate(state.pools):
        pool.elite_ends = tensors[f"pools.{index}.ends"]
        pool.elite_s = tensors[f"pools.{index}.costs"]
    if "order_pools.0.costs" in tensors:
        draw_order_pools(config.orders, config.seed, orders)
    for index, order_pool in enumerate(orders.pools):
        order_pool.elite_orders = tensors[f"order_pools.{index}.orders"]
        order_pool.elite_s = tensors[f"order_pools.{index}.costs"]


def _tensors_of(name: str, params: Any, optimizer: Any) -> dict[str, Any]:
    """Returns weights and optimizer of one head by name."""
    tensors = {f"{name}.params.{key}": value for key, value in flat(params).items()}
    for index, leaf in enumerate(jax.tree.leaves(optimizer)):
        tensors[f"{name}.optimizer.{index}"] = leaf
    return tensors


def _trees_of(name: str, tensors: dict[str, np.ndarray], optimizer: Any) -> tuple[Any, Any]:
    """Returns what `_tensors_of` made flat; `optimizer` has the structure of what was saved."""
    prefix = f"{name}.params."
    params = {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}
    leaves, tree = jax.tree.flatten(optimizer)
    saved = [
        tensors[f"{name}.optimizer.{index}"].reshape(np.shape(leaf))
        for index, leaf in enumerate(leaves)
    ]
    return nested(params), jax.tree.unflatten(tree, saved)


def append_metrics(folder: Path, reports: list[Report]) -> None:
    """Appends one JSON line for each report."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / METRICS_FILE).open("a") as file:
        file.writelines(json.dumps(report) + "\n" for report in reports)


def cut_metrics(folder: Path, step: int) -> None:
    """Removes the lines of steps that will be run again."""
    file = folder / METRICS_FILE
    if file.exists():
        lines = file.read_text().splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        file.write_text("".join(line + "\n" for line in kept))


def _step_of(line: str) -> float:
    """Returns the step of a line; one that a kill cut short counts as never reached."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _text(config: TrainingConfig) -> str:
    return json.dumps(asdict(config), sort_keys=True)


def _read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            names = opened.keys()
            return {name: opened.get_tensor(name) for name in names}, opened.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _damaged(file, str(error)) from error


def _damaged(file: Path, found: str) -> InputError:
    rule = "it must be a state that training wrote"
    return mistake("file", found, rule, "Remove it to begin anew", file=str(file))
