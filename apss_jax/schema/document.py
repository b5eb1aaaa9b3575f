"""Reads and writes documents: bounded, strict JSON in; atomic files out."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from apss_jax.schema.errors import InputError, Mistake, mistake, shorten

MAX_FILE_BYTES = 64 * 2**20  # a cluster profile of a few thousand samples is below 2 MiB
MAX_MISTAKES = 20
VERSION = re.compile(r"([a-z_.]+)/([0-9]{1,9})")
DocumentT = TypeVar("DocumentT", bound="Document")


class Part(BaseModel):
    """A piece of a document: frozen, unknown keys and non-finite numbers refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, strict=True, protected_namespaces=()
    )


class Tagged(Part):
    """A piece that says in `kind` which of several it is, also when everything else is default."""

    @model_serializer(mode="wrap")
    def _keep_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": getattr(self, "kind", None), **handler(self)}


class Document(Part):
    """A whole file; `schema` names its kind and version."""

    SCHEMA: ClassVar[str]

    @classmethod
    def from_json(cls, data: object, *, file: str | None = None) -> Self:
        """Returns the validated document; raises `InputError` naming each wrong key."""
        if not isinstance(data, dict):
            raise mistake("(whole file)", data, "must be a JSON object", _expected(cls), file=file)
        if "schema" not in data:
            raise wrong_schema(cls, None, file=file)
        body = _without_schemas(cls, data, file)
        try:
            return cls.model_validate_json(json.dumps(body))
        except ValidationError as error:
            raise InputError(_mistakes(error, file)) from None

    def to_json(self) -> dict[str, Any]:
        """Returns the document as JSON data, defaults left out."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json", exclude_defaults=True)}


def _without_schemas(cls: type[Document], data: dict[str, Any], file: str | None) -> dict[str, Any]:
    """Returns a document's data without `schema`, in the documents inside it, too.

    One inside needs none, but has its own where it has one.
    """
    found = data.get("schema", cls.SCHEMA)
    if found != cls.SCHEMA:
        raise wrong_schema(cls, found, file=file)
    body = {key: value for key, value in data.items() if key != "schema"}
    for name, inner in _documents_in(cls):
        value = body.get(name)
        if isinstance(value, dict):
            body[name] = _without_schemas(inner, value, file)
        elif isinstance(value, list):
            body[name] = [
                _without_schemas(inner, each, file) if isinstance(each, dict) else each
                for each in value
            ]
    return body


def _documents_in(cls: type[Document]) -> Iterator[tuple[str, type[Document]]]:
    """Yields the fields that hold a document, or a tuple of some."""
    for name, field in cls.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Document):
                yield name, kind


def wrong_schema(cls: type[Document], found: object, *, file: str | None) -> InputError:
    """Returns the error for a file of another kind, or of another version of this one."""
    rule = f"must be {cls.SCHEMA!r}"
    theirs, ours = version_of(cls, found), version_of(cls, cls.SCHEMA)
    if theirs is None or ours is None:
        return mistake("schema", found, rule, _expected(cls), file=file)
    remedy = "write the file again with the one that is installed"
    if theirs > ours:
        rule += ": the file is newer than this version of apss-jax"
        return mistake("schema", found, rule, f"Update apss-jax, or {remedy}", file=file)
    rule += ": the file is older than this version of apss-jax"
    return mistake("schema", found, rule, f"Use the version that wrote it, or {remedy}", file=file)


def version_of(cls: type[Document], schema: object) -> int | None:
    """Returns the version that a schema's name ends in, None where it is of another kind."""
    match = VERSION.fullmatch(schema) if isinstance(schema, str) else None
    kind = cls.SCHEMA.partition("/")[0]
    return int(match[2]) if match is not None and match[1] == kind else None


def _expected(cls: type[Document]) -> str:
    return f'Give a file that begins {{"schema": "{cls.SCHEMA}", ...}}'


def _mistakes(error: ValidationError, file: str | None) -> list[Mistake]:
    found = []
    for item in error.errors(include_url=False)[:MAX_MISTAKES]:
        key = ".".join(str(step) for step in item["loc"]) or "(whole file)"
        value = "" if item["type"] == "missing" else shorten(item["input"])
        found.append(Mistake(file, key, value, _rule(item), _remedy(item["type"])))
    return found


def _rule(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "is not a known key"
    if item["type"] == "missing":
        return "is missing"
    text = str(item["msg"]).removeprefix("Value error, ")
    return text[0].lower() + text[1:]


def _remedy(kind: str) -> str:
    remedies = {
        "extra_forbidden": "Remove it or correct its spelling",
        "missing": "Add it",
    }
    return remedies.get(kind, "Correct the value")


def read_json(path: str | Path) -> Any:
    """Returns the JSON value in a file; raises `InputError` for anything that is not one.

    Refuses directories, files above 64 MiB, text that is not UTF-8, duplicate keys, NaN and
    Infinity, and nesting that no document of ours needs.
    """
    name = str(path)
    text = read_text(Path(path), name)
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise mistake(
            where, error.msg, "is not JSON", "Repair or re-create it", file=name
        ) from None
    except RecursionError:
        raise mistake("(whole file)", "", "is nested too deeply", "Flatten it", file=name) from None
    except ValueError as error:
        raise mistake("(whole file)", "", str(error), "Correct it", file=name) from None


def read_text(path: Path, name: str) -> str:
    """Returns the UTF-8 text of a file of at most 64 MiB; raises `InputError`."""
    try:
        if path.is_dir():
            raise mistake("(path)", name, "is a directory", "Name a file", file=name)
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            rule = f"is larger than {MAX_FILE_BYTES // 2**20} MiB"
            raise mistake("(file)", "", rule, "Name another file", file=name)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise mistake("(file)", "", "is not UTF-8 text", "Name a text file", file=name) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise mistake("(path)", name, reason, "Check the path", file=name) from None


def _no_constant(text: str) -> float:
    raise ValueError(f"holds {text}, which is not a number of JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"has the key {twice!r} twice in one object")
    return result


def read_document(cls: type[DocumentT], path: str | Path) -> DocumentT:
    """Returns the document in a file; raises `InputError`."""
    return cls.from_json(read_json(path), file=str(path))


def write_text(path: Path, text: str) -> None:
    """Writes a file so that a kill at any moment leaves the old file or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_document(document: Document, path: Path) -> None:
    """Writes a document as indented JSON, atomically."""
    write_text(path, json.dumps(document.to_json(), indent=1) + "\n")
