"""Writes fitted constants into the files of the library, everything else in them kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apss_jax.importers.library import LIBRARY
from apss_jax.schema.document import read_json, write_text

DIGITS: Final = 4  # significant ones; no run determines a constant better
UNFITTED: Final = "Not fitted: "  # in a source text, begins what the fit leaves as it is
Fields = Mapping[str, Any]
"""Values by field; numbers are rounded."""


@dataclass(frozen=True)
class NewConstants:
    """What to write: fields by the name of the file, and what each file's source then says."""

    devices: Mapping[str, Fields]
    links: Mapping[str, Fields]
    stacks: Mapping[str, Fields]
    sources: Mapping[str, str]  # by the name of the file


def write_constants(new: NewConstants, library: Path = LIBRARY) -> list[Path]:
    """Returns the files of the library that were rewritten, each atomically.

    Clusters hold copies of devices and links, which are kept equal.
    """
    changed = []
    for path in sorted(library.glob("*/*.json")):
        before = read_json(path)
        after = read_json(path)
        for name, part, fields in _parts(path, after, new):
            _update(part, fields, new.sources.get(name))
        if after != before:
            write_text(path, json.dumps(after, indent=1) + "\n")
            changed.append(path)
    return changed


def _parts(
    path: Path, data: dict[str, Any], new: NewConstants
) -> Iterator[tuple[str, dict[str, Any], Fields]]:
    """Yields what holds constants in a file: the owner's name, the object, its new fields."""
    folder = path.parent.name
    if folder == "stacks" and path.stem in new.stacks:
        yield path.stem, data, new.stacks[path.stem]
    if folder == "devices" and path.stem in new.devices:
        yield path.stem, data["device_type"]["rates"], new.devices[path.stem]
    if folder == "links" and path.stem in new.links:
        yield path.stem, data["link"], new.links[path.stem]
    if folder == "clusters":
        for name in new.devices.keys() & data["device_types"].keys():
            yield name, data["device_types"][name]["rates"], new.devices[name]
        for name in new.links.keys() & data["links"].keys():
            yield name, data["links"][name], new.links[name]


def _update(part: dict[str, Any], fields: Fields, source: str | None) -> None:
    for name, value in fields.items():
        part[name] = _rounded(value) if isinstance(value, float) else value
    if source is not None:
        kept = _unfitted(part["source"], fields)
        part["source"] = f"{source} {UNFITTED}{kept}" if kept else source


def _unfitted(source: str, fields: Fields) -> str:
    """Returns what a source says of constants that are not fitted, without those that now are."""
    text = source.partition(UNFITTED)[2]
    end = "." if text.endswith(".") else ""
    clauses = text.removesuffix(".").split("; ")
    kept = [each for each in clauses if fields.keys().isdisjoint(re.findall(r"\w+", each))]
    return "; ".join(kept) + end if any(kept) else ""


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
