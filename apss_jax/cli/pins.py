"""Reads `--pin key=value`: what a search must keep fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Final, get_args

from apss_jax.cli.values import one_of, switch, whole_number
from apss_jax.schema.errors import mistake

FLAG: Final = "--pin"
SHORT: Final = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "vpp": "virtual_stages",
    "mbs": "micro_batch",
    "zero": "zero_stage",
    "sp": "sequence_parallel",
    "recompute": "recompute",
    "schedule": "schedule",
}
Value = int | bool | str
ReadFn = Callable[[str, str], Value]
"""Returns what one value of a pin means; takes the pin's name for messages, and the text."""


def read_pins(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Returns the allowed values by field of a layout; raises `InputError`."""
    pins: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        field, values = _read(text)
        if field in pins:
            remedy = "Give several values with commas, as in --pin tp=4,8"
            raise mistake(FLAG, text, f"pins {field} a second time", remedy)
        pins[field] = values
    return pins


def _read(text: str) -> tuple[str, tuple[Value, ...]]:
    key, equals, values = text.partition("=")
    if not equals:
        raise mistake(FLAG, text or "''", "must be key=value", "Write for example --pin tp=8")
    field = _field(key.strip(), text)
    read = _reader(field)
    pieces = [piece.strip() for piece in values.split(",")]
    return field, tuple(dict.fromkeys(read(f"{FLAG} {key.strip()}", one) for one in pieces))


def _field(key: str, text: str) -> str:
    name = key.lower().replace("-", "_")
    if name in SHORT.values():
        return name
    if name in SHORT:
        return SHORT[name]
    close = get_close_matches(name, [*SHORT, *SHORT.values()], n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    raise mistake(FLAG, text, "pins an unknown key", f"{guess}Choose from {', '.join(SHORT)}")


def _reader(field: str) -> ReadFn:
    from apss_jax.schema.plan import Recompute, ScheduleName

    readers: dict[str, ReadFn] = {
        "sequence_parallel": switch,
        "recompute": lambda flag, text: one_of(flag, text, get_args(Recompute)),
        "schedule": lambda flag, text: one_of(flag, text, get_args(ScheduleName)),
        "zero_stage": zero_stage,
    }
    return readers.get(field, whole_number)


def zero_stage(flag: str, text: str) -> int:
    """Returns the ZeRO stage that a text gives."""
    return int(one_of(flag, text, ("0", "1", "2", "3")))
