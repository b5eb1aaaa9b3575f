"""The folder of `--out`: looked at before the work, written after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from apss_jax.cli.run import note
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from apss_jax.schema.plan import SearchResult

FLAG: Final = "--out"
RESULT: Final = "result.json"
PLAN: Final = "plan.json"


@dataclass(frozen=True)
class OutputFolder:
    """Where a search leaves its files."""

    path: Path

    def write(self, result: SearchResult) -> None:
        """Writes the result and its first plan, each whole or not at all, and says so."""
        from apss_jax.schema.document import write_document

        _guarded(self.path, lambda: write_document(result, self.path / RESULT))
        if result.plans:
            _guarded(self.path, lambda: write_document(result.plans[0], self.path / PLAN))
        else:  # with --force, an older search's plan would pass for this one's
            _guarded(self.path, lambda: (self.path / PLAN).unlink(missing_ok=True))
        note(f"Wrote {', '.join(str(self.path / name) for name in self._names(result))}")

    def _names(self, result: SearchResult) -> tuple[str, ...]:
        return (RESULT, PLAN) if result.plans else (RESULT,)


def output_folder(text: str | None, *, force: bool) -> OutputFolder | None:
    """Returns the folder that `--out` names, None without one; raises `InputError` when taken."""
    if text is None:
        if force:
            raise mistake("--force", "", "means nothing without --out", "Add --out DIR")
        return None
    path = Path(text)
    _guarded(path, lambda: _look(path, text, force))
    return OutputFolder(path)


def _look(path: Path, text: str, force: bool) -> None:
    if not text:
        raise mistake(FLAG, "''", "is empty", "Name a folder")
    present = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not present.is_dir():
        raise mistake(FLAG, text, f"{present} is a file", "Name a folder")
    if not os.access(present, os.W_OK):
        raise mistake(FLAG, text, f"{present} cannot be written", "Name another folder")
    taken = [name for name in (RESULT, PLAN) if (path / name).exists()]
    if taken and not force:
        remedy = "Name another folder, or add --force to replace them"
        raise mistake(FLAG, text, f"already holds {' and '.join(taken)}", remedy)


def _guarded(path: Path, act: Callable[[], object]) -> None:
    try:
        act()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise mistake(FLAG, str(path), reason, "Name a folder that can be written") from None
