"""Reads the fields of a config by name and alias; every value is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from apss_jax.schema.document import Part
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.weights import MAX_SIZE

PartT = TypeVar("PartT", bound=Part)

# The same quantity under the names that different families gave it.
HIDDEN: Final = ("hidden_size", "n_embd", "d_model", "n_embed")
LAYERS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HEADS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
INTERMEDIATE: Final = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size")
POSITIONS: Final = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx",
    "seq_length", "model_max_length",
)  # fmt: skip
EXPERTS: Final = (
    "n_routed_experts", "num_routed_experts", "num_local_experts", "num_experts", "moe_num_experts",
)  # fmt: skip
TOP_K: Final = (
    "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts",
    "moe_topk", "moe_top_k", "moe_k",
)  # fmt: skip
SHARED_EXPERTS: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")


def changed(part: PartT, **values: Any) -> PartT:
    """Returns the part with other values, which are checked as in a new one."""
    kept = {name: getattr(part, name) for name in type(part).model_fields}
    return type(part)(**{**kept, **values})


class Fields:
    """The fields of one JSON object; remembers which were read. A null counts as missing."""

    def __init__(self, data: Mapping[str, Any], *, file: str | None = None, path: str = "") -> None:
        self.data = data
        self.file = file
        self.path = path
        self.seen: set[str] = set()
        self.notes: list[str] = []

    def wrong(self, key: str, rule: str, remedy: str) -> InputError:
        """Returns the error that a field breaks a rule; a missing field shows no value."""
        value = self.data.get(key, "")
        return mistake(self.path + key, value, rule, remedy, file=self.file)

    def has(self, *names: str) -> bool:
        """Returns whether one of the names is present and not null."""
        return self._found(names) is not None

    def size(self, *names: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """Returns a positive whole number; one without a default must be present."""
        found = self.optional_size(*names, most=most)
        if found is not None:
            return found
        if default is None:
            others = f" (or {', '.join(names[1:])})" if names[1:] else ""
            raise self.wrong(names[0], "is missing", f"Add {names[0]}{others}, a positive number")
        return default

    def optional_size(self, *names: str, most: int = MAX_SIZE) -> int | None:
        """Returns a positive whole number, or None when it is missing."""
        return self._whole(names, 1, most)

    def count(self, *names: str, default: int = 0) -> int:
        """Returns a whole number that may be 0."""
        found = self._whole(names, 0, MAX_SIZE)
        return default if found is None else found

    def flag(self, name: str, default: bool) -> bool:
        """Returns true or false."""
        value = self._found((name,))
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "must be true or false", "Correct the value")
        return value

    def text(self, name: str, default: str = "") -> str:
        """Returns a string."""
        value = self._found((name,))
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "must be a string", "Correct the value")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """Returns a list of strings, or None when it is missing."""
        value = self._found((name,))
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "must be a list of strings", "Correct the list")
        return tuple(value)

    def counts(self, name: str) -> tuple[int, ...] | None:
        """Returns a list of whole numbers from 0, or None when it is missing."""
        value = self._found((name,))
        if value is None:
            return None
        if not isinstance(value, list) or not all(_is_whole(v, 0, MAX_SIZE) for v in value):
            raise self.wrong(name, "must be a list of whole numbers", "Correct the list")
        return tuple(value)

    def section(self, *names: str) -> Fields | None:
        """Returns a nested object, or None when it is missing; its notes are ours too."""
        value = self._found(names)
        if value is None:
            return None
        name = self._name(names)
        if not isinstance(value, dict):
            raise self.wrong(name, "must be an object", "Correct the value")
        inner = Fields(value, file=self.file, path=f"{self.path}{name}.")
        inner.notes = self.notes
        return inner

    def filled(self, defaults: Mapping[str, Any]) -> Fields:
        """Returns the fields with a class's defaults where they are silent, and notes which.

        A nested section is saved without the fields that equal its class's defaults.
        """
        missing = {key: value for key, value in defaults.items() if key not in self.data}
        if missing:
            place = self.path.rstrip(".") or "config"
            self.note(f"{place}: the family's defaults for {', '.join(sorted(missing))}")
        inner = Fields({**missing, **self.data}, file=self.file, path=self.path)
        inner.notes, inner.seen = self.notes, self.seen
        return inner

    def with_field(self, name: str, value: Any) -> Fields:
        """Returns the fields with one more."""
        inner = Fields({**self.data, name: value}, file=self.file, path=self.path)
        inner.notes, inner.seen = self.notes, self.seen
        return inner

    def note(self, text: str) -> None:
        """Records what was assumed."""
        if text not in self.notes:
            self.notes.append(text)

    def unread(self) -> Iterable[tuple[str, Any]]:
        """Returns the fields that nothing asked for."""
        return [(key, value) for key, value in self.data.items() if key not in self.seen]

    def _name(self, names: tuple[str, ...]) -> str:
        return next((name for name in names if self.data.get(name) is not None), names[0])

    def _found(self, names: tuple[str, ...]) -> Any:
        self.seen.update(names)
        return self.data.get(self._name(names))

    def _whole(self, names: tuple[str, ...], least: int, most: int) -> int | None:
        value = self._found(names)
        if value is None:
            return None
        name = self._name(names)
        if not _is_whole(value, least, most):
            rule = f"must be a whole number from {least} to {most}"
            raise self.wrong(name, rule, "Correct the value")
        self._refuse_conflict(name, value, names)
        return int(value)

    def _refuse_conflict(self, name: str, value: int, names: tuple[str, ...]) -> None:
        # Where positions are learned, only the first name is the table's; the others are limits.
        if names[0] in POSITIONS:
            return
        for other in names:
            found = self.data.get(other)
            if found is not None and found != value:
                rule = f"contradicts {self.path}{name}, which is {value}"
                raise self.wrong(other, rule, "Keep the one that is right")


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
