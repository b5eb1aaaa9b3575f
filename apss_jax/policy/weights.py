"""The shipped network: where its files lie, and reading them with everything checked."""

from __future__ import annotations

import json
import sysconfig
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from apss_jax.policy.batched import Params, order_param_shapes, param_shapes
from apss_jax.policy.features import PIECE_FEATURES, PLACE_FEATURES
from apss_jax.policy.network import NetworkConfig
from apss_jax.policy.orders import OrderConfig
from apss_jax.policy.placements import TYPE_FEATURES
from apss_jax.schema.errors import InputError, mistake

SCHEMA: Final = "apss.dpsn/1"
CONFIG_FILE: Final = "config.json"
WEIGHTS_FILE: Final = "weights.safetensors"
_NAME: Final = "dpsn"
_REMEDY: Final = "Install the package again, or name a folder that `python -m apss_jax.train` wrote"


@dataclass(frozen=True, eq=False)
class Policy:
    """A network that is ready to use: the head that cuts, and the head that orders devices."""

    config: NetworkConfig
    params: Params
    order_config: OrderConfig
    order_params: Params


def checkpoint_folder() -> Path:
    """Returns the folder of the shipped network, in a checkout or in an installation."""
    beside = Path(__file__).parents[2] / "checkpoints" / _NAME
    installed = Path(sysconfig.get_path("data")) / "share" / "apss_jax" / "checkpoints" / _NAME
    return beside if beside.is_dir() else installed


@lru_cache(maxsize=1)
def shipped_policy() -> Policy:
    """Returns the shipped network; raises `InputError` if its files are missing or damaged."""
    return read_policy(checkpoint_folder())


def read_policy(folder: Path) -> Policy:
    """Returns the network of a folder; raises `InputError` that says what is wrong with it."""
    document = _document(folder / CONFIG_FILE)
    config = NetworkConfig(**_sizes(folder, document, "network", asdict(NetworkConfig())))
    orders = OrderConfig(**_sizes(folder, document, "orders", asdict(OrderConfig())))
    file = folder / WEIGHTS_FILE
    tensors = read_tensors(file)
    wanted = flat({"cuts": param_shapes(config), "orders": order_param_shapes(orders)})
    for name in sorted(set(wanted) | set(tensors)):
        found = tensors[name].shape if name in tensors else None
        expected = tuple(wanted[name].shape) if name in wanted else None
        if found != expected:
            rule = "it must be absent" if expected is None else f"its shape must be {expected}"
            raise _wrong(file, name, "absent" if found is None else found, rule)
        if not np.isfinite(tensors[name]).all():
            raise _wrong(file, name, "not finite", "every weight must be a finite number")
    params = nested(tensors)
    return Policy(config, params["cuts"], orders, params["orders"])


def write_policy(folder: Path, policy: Policy, figures: dict[str, Any]) -> None:
    """Writes a network that `read_policy` reads; `figures` say how it was trained."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    params = {"cuts": policy.params, "orders": policy.order_params}
    save_file(flat(jax.tree.map(np.asarray, params)), folder / WEIGHTS_FILE)
    sizes = {"network": asdict(policy.config), "orders": asdict(policy.order_config)}
    document = {"schema": SCHEMA, **sizes, **_feature_counts(), **figures}
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")


def read_tensors(file: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a safetensors file; raises `InputError` if it is not one."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise _wrong(file, "file", str(error), "it must be a whole safetensors file") from error


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the leaves of nested dictionaries by their dotted paths."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def nested(leaves: dict[str, Any]) -> dict[Any, Any]:
    """Returns the nested dictionaries that `flat` made flat; numbers are indices of lists."""
    tree: dict[Any, Any] = {}
    for name, value in leaves.items():
        *path, last = (int(part) if part.isdigit() else part for part in name.split("."))
        place = tree
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return tree


def _feature_counts() -> dict[str, int]:
    return {
        "piece_features": PIECE_FEATURES,
        "place_features": PLACE_FEATURES,
        "type_features": TYPE_FEATURES,
    }


def _document(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(file, "file", str(error), "it must be a readable JSON document") from error
    found = document.get("schema") if isinstance(document, dict) else document
    if found != SCHEMA:
        raise _wrong(file, "schema", found, f"it must be {SCHEMA}")
    for key, count in _feature_counts().items():
        if document.get(key) != count:
            raise _wrong(file, key, document.get(key), f"this version reads {count}")
    return document


def _sizes(
    folder: Path, document: dict[str, Any], key: str, known: dict[str, int]
) -> dict[str, int]:
    file, sizes = folder / CONFIG_FILE, document.get(key)
    if not isinstance(sizes, dict) or set(sizes) != set(known):
        raise _wrong(file, key, sizes, f"its keys must be {', '.join(known)}")
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
            raise _wrong(file, f"{key}.{name}", value, "it must be a whole number from 1 to 1024")
    return sizes


def _wrong(file: Path, key: str, value: Any, rule: str) -> InputError:
    return mistake(key, value, rule, _REMEDY, file=str(file))
