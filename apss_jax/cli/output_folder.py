"""The folder of `--out`: looked at before the work, written after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from apss_jax.cli.exports import file_names_of
from apss_jax.cli.run import note
from apss_jax.schema.errors import mistake

if TYPE_CHECKING:
    from apss_jax.schema.plan import SearchResult

FLAG: Final = "--out"
RESULT: Final = "result.json"
PLAN: Final = "plan.json"
REPORT: Final = ("report.html", "trace.json")
FILE_MODE: Final = 0o644
PROGRAM_MODE: Final = 0o755
Files = Mapping[str, str]


@dataclass(frozen=True)
class OutputFolder:
    """Where a search leaves its files; `formats` are the exports beside them."""

    path: Path
    formats: tuple[str, ...] = ()

    def write(
        self,
        result: SearchResult,
        report: Files,
        exports: Mapping[str, Files] | None = None,
    ) -> None:
        """Writes the result, its first plan, the report and the exports; says so.

        Each file is written whole or not at all. With --force, what an older search left and this
        one has not is removed: it would pass for this one's.
        """
        from apss_jax.schema.document import write_document, write_text

        _guarded(self.path, lambda: write_document(result, self.path / RESULT))
        if result.plans:
            _guarded(self.path, lambda: write_document(result.plans[0], self.path / PLAN))
        for name, text in report.items():
            _guarded(self.path, partial(write_text, self.path / name, text))
        for name in {PLAN, *REPORT} - {*report, *self._documents(result)}:
            _guarded(self.path, partial((self.path / name).unlink, missing_ok=True))
        for name in self.formats:
            files = (exports or {}).get(name, {})
            _guarded(self.path, partial(replace_folder, self.path / name, files))
        written = [*self._documents(result), *report, *(f"{name}/" for name in exports or ())]
        note(f"Wrote {', '.join(str(self.path / name) for name in written)}")

    def _documents(self, result: SearchResult) -> tuple[str, ...]:
        return (RESULT, PLAN) if result.plans else (RESULT,)


def replace_folder(folder: Path, files: Files) -> None:
    """Puts a folder with some files in the place of an older one; without files, removes it.

    The files are complete before the folder has its name.
    """
    from apss_jax.schema.document import write_text

    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if not files:
        shutil.rmtree(folder, ignore_errors=True)
        return
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        for name, text in files.items():
            write_text(new / name, text)
            (new / name).chmod(PROGRAM_MODE if name.endswith(".sh") else FILE_MODE)
        new.chmod(PROGRAM_MODE)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def output_folder(
    text: str | None, *, force: bool, formats: Sequence[str] = ()
) -> OutputFolder | None:
    """Returns the folder that `--out` names, None without one; raises `InputError` when taken."""
    if text is None:
        if force:
            raise mistake("--force", "", "means nothing without --out", "Add --out DIR")
        return None
    path = Path(text)
    _guarded(path, lambda: _look(path, text, force))
    for name in formats:
        _guarded(path / name, partial(_look_inside, path / name, name, force))
    return OutputFolder(path, tuple(formats))


def _look(path: Path, text: str, force: bool) -> None:
    if not text:
        raise mistake(FLAG, "''", "is empty", "Name a folder")
    present = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not present.is_dir():
        raise mistake(FLAG, text, f"{present} is a file", "Name a folder")
    if not os.access(present, os.W_OK):
        raise mistake(FLAG, text, f"{present} cannot be written", "Name another folder")
    taken = [name for name in (RESULT, PLAN, *REPORT) if (path / name).exists()]
    if taken and not force:
        remedy = "Name another folder, or add --force to replace them"
        raise mistake(FLAG, text, f"already holds {' and '.join(taken)}", remedy)


def _look_inside(folder: Path, name: str, force: bool) -> None:
    """Raises `InputError` where an export's folder is taken, by files of others in any case."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise mistake(FLAG, str(folder), "is no folder", "Name another folder")
    if not folder.exists():
        return
    if not force:
        remedy = "Name another folder, or add --force to replace it"
        raise mistake(FLAG, str(folder), "is already there", remedy)
    inside = {str(f.relative_to(folder)) for f in folder.rglob("*") if not f.is_dir()}
    others = sorted(inside - file_names_of(name))
    if others:
        rule = f"holds {others[0]}, which no export wrote"
        raise mistake(FLAG, str(folder), rule, "Name another folder, or move it away")


def _guarded(path: Path, act: Callable[[], object]) -> None:
    try:
        act()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise mistake(FLAG, str(path), reason, "Name a folder that can be written") from None
