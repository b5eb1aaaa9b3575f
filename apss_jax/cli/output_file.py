"""A file that a command is to write: looked at before the work."""

from __future__ import annotations

import os
from pathlib import Path

from apss_jax.schema.errors import mistake


def output_file(flag: str, text: str, ending: str, *, force: bool) -> Path:
    """Returns the path; raises `InputError` where it cannot be written, or is taken."""
    path = Path(text)
    try:
        _look(flag, path, text, ending, force)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise mistake(flag, text, reason, "Name a file that can be written") from None
    return path


def _look(flag: str, path: Path, text: str, ending: str, force: bool) -> None:
    if path.suffix.lower() != ending:
        raise mistake(flag, text or "''", f"does not end in {ending}", f"Name a {ending} file")
    if path.is_dir():
        raise mistake(flag, text, "is a directory", "Name a file")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        rule = f"its folder {path.parent} is not there or cannot be written"
        raise mistake(flag, text, rule, "Make the folder or name another")
    if path.exists() and not force:
        remedy = "Name another file, or add --force to replace it"
        raise mistake(flag, text, "is already there", remedy)
