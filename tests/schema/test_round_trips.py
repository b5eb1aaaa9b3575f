"""Every document is read back from what it writes, plans inside results included."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
from document_samples import filled

import apss_jax.schema
from apss_jax.importers.library import LIBRARY
from apss_jax.schema.calibration import Calibration
from apss_jax.schema.document import Document, read_json
from apss_jax.schema.errors import InputError
from apss_jax.schema.plan import Estimate, Plan, SearchResult
from apss_jax.schema.trial import Trial
from apss_jax.schema.validation import HeldOut, Validation
from apss_jax.schema.workload import Workload

ANSWERS: tuple[type[Document], ...] = (
    Plan, SearchResult, Estimate, Validation, HeldOut, Calibration, Trial, Workload,
)  # fmt: skip
FILES = sorted(LIBRARY.glob("*/*.json"))


def documents() -> dict[str, type[Document]]:
    """Returns every kind of document by its schema."""
    for module in iter_modules(apss_jax.schema.__path__):
        import_module(f"apss_jax.schema.{module.name}")
    return {kind.SCHEMA: kind for kind in _below(Document)}


def _below(kind: type[Document]) -> Iterator[type[Document]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def read_back(document: Document) -> Document:
    """Returns what a program reads that got a document as text."""
    return type(document).from_json(json.loads(json.dumps(document.to_json(), allow_nan=False)))


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_comes_back(kind: type[Document], full: bool) -> None:
    """Whatever is in an answer, from_json of to_json is the same answer."""
    document = filled(kind, full)
    assert read_back(document) == document


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_library_file_comes_back(file: Path) -> None:
    """Models, devices, links, stacks, clusters and references are read back as they are."""
    data = read_json(file)
    document = documents()[data["schema"]].from_json(data)
    assert read_back(document) == document


def test_every_kind_is_tried() -> None:
    """No kind of document is in neither list."""
    in_library = {read_json(file)["schema"] for file in FILES}
    assert set(documents()) == in_library | {kind.SCHEMA for kind in ANSWERS}


def test_a_document_inside_must_be_of_its_kind() -> None:
    """A plan of another version, or something else in its place, is refused by name."""
    plan = Plan(tensor_parallel=1, pipeline_parallel=1, data_parallel=1, micro_batch=1,
                num_micro_batches=1).to_json()  # fmt: skip
    whole = {"schema": Estimate.SCHEMA, "legal": True, "plan": plan}
    assert Estimate.from_json(whole).plan.to_json() == plan
    for schema in ("apss.plan/2", "apss.model/1", None):
        with pytest.raises(InputError, match=r"must be 'apss\.plan/1'"):
            Estimate.from_json({**whole, "plan": {**plan, "schema": schema}})
