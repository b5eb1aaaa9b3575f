"""Finds a model by name or path and reads it, whichever of the accepted formats it is in."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any, Final

from apss_jax.importers.huggingface import model_from_config
from apss_jax.importers.library import is_there
from apss_jax.schema.document import read_json
from apss_jax.schema.errors import mistake
from apss_jax.schema.model import Model

MODELS: Final = Path(__file__).parents[1] / "library" / "models"
CONFIG: Final = "config.json"


def list_models() -> list[str]:
    """Returns the names of the library's models, sorted."""
    return sorted(path.stem for path in MODELS.glob("*.json"))


def load_model(name_or_path: str | os.PathLike[str]) -> Model:
    """Returns a model: of the library by name, or from a file; raises `InputError`.

    A file is a Hugging Face `config.json`, a folder that holds one, or a model file of ours. What
    looks like a path (a separator in it, or `.json` at its end) is never looked up in the library.
    """
    text = _as_text(name_or_path)
    if not _is_path(text):
        known = {name.lower(): name for name in list_models()}
        found = known.get(text.lower())
        if found is not None:
            return _read(MODELS / f"{found}.json")
        if not text or not is_there(text):
            raise _unknown(text, list(known.values()))
    return _read(Path(text))


def model_from_json(data: Any, *, file: str | None = None, name: str | None = None) -> Model:
    """Returns the model in a JSON value: ours if it names a schema, else a Hugging Face config."""
    if isinstance(data, dict) and "schema" in data:
        return Model.from_json(data, file=file)
    return model_from_config(data, file=file, name=name)


def _as_text(value: object) -> str:
    if isinstance(value, str | os.PathLike):
        return str(os.fspath(value))
    remedy = "Give a library name or the path of a config.json"
    raise mistake("--model", value, "must be a name or a path", remedy)


def _is_path(text: str) -> bool:
    separators = {os.sep, os.altsep or os.sep, "/"}
    return text.lower().endswith(".json") or any(mark in text for mark in separators)


def _read(path: Path) -> Model:
    inside = path / CONFIG
    file = inside if is_there(str(inside)) and inside.is_file() else path
    stem = file.stem if file.name != CONFIG else file.resolve().parent.name
    return model_from_json(read_json(file), file=str(file), name=stem)


def _unknown(text: str, known: list[str]) -> Exception:
    close = difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.5)
    guess = f"Did you mean {' or '.join(close)}? " if close else ""
    remedy = (
        f"{guess}Give a library name ({len(known)} in {MODELS}), or the path of a config.json "
        "with a slash or .json in it"
    )
    return mistake("--model", text, "is not the name of a library model", remedy)
