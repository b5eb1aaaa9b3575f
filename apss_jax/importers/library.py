"""Finds shipped files by name: which exist, and which one a person means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

from apss_jax.schema.document import Document, read_document, read_json
from apss_jax.schema.errors import InputError, mistake

LIBRARY: Final = Path(__file__).parents[1] / "library"
MAX_LISTED = 40  # names that a message lists
DocumentT = TypeVar("DocumentT", bound=Document)


def library_names(folder: str) -> tuple[str, ...]:
    """Returns the names of one kind of library file, sorted."""
    return tuple(sorted(file.stem for file in (LIBRARY / folder).glob("*.json")))


def library_match(folder: str, name: str) -> str | None:
    """Returns the library name that equals `name` in any case, or None."""
    wanted = name.casefold()
    return next((stem for stem in library_names(folder) if stem.casefold() == wanted), None)


def read_library(cls: type[DocumentT], folder: str, name: str) -> DocumentT:
    """Returns the library document of that exact name."""
    return read_document(cls, LIBRARY / folder / f"{name}.json")


def library_aliases(folder: str) -> dict[str, str]:
    """Returns the name of each alias, in lower case, among files that list `aliases`."""
    return {
        alias.casefold(): stem
        for stem in library_names(folder)
        for alias in read_json(LIBRARY / folder / f"{stem}.json").get("aliases", ())
    }


def looks_like_path(text: str) -> bool:
    """Returns whether the spelling alone says that a file is meant."""
    return text.lower().endswith(".json") or "/" in text or "\\" in text


def is_there(text: str) -> bool:
    """Returns whether a file or directory has this name."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or a null character
        return False


def unknown_name(
    key: str,
    name: str,
    kind: str,
    known: Iterable[str],
    hint: str,
    aliases: Iterable[str] = (),
    *,
    file: str | None = None,
) -> InputError:
    """Returns the error for a name that nothing has, with close matches and what there is."""
    listed = list(known)
    by_case = {candidate.casefold(): candidate for candidate in (*listed, *aliases)}
    close = difflib.get_close_matches(name.casefold(), by_case, n=3, cutoff=0.5)
    meant = f"Did you mean {' or '.join(by_case[c] for c in close)}? " if close else ""
    names = ", ".join(listed[:MAX_LISTED])
    remedy = f"{meant}{hint} One of: {names}"
    return mistake(key, name, f"is not a {kind} of the library", remedy, file=file)
