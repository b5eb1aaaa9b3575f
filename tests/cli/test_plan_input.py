"""The two ways to name a plan: a file, or the flags of a layout."""

import json
from pathlib import Path
from typing import Any

import pytest
from samples import PLAN, RESULT

from apss_jax.cli.layout_flags import LayoutTexts
from apss_jax.cli.pins import SHORT, read_pins
from apss_jax.cli.plan_file import read_plan
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Estimate

ELEMENT = {key: value for key, value in PLAN.to_json().items() if key != "schema"}
FORMS = {
    "plan": PLAN.to_json(),
    "element": ELEMENT,
    "result": RESULT.to_json(),
    "bare_elements": RESULT.to_json() | {"plans": [ELEMENT]},
    "estimate": Estimate(legal=True, plan=PLAN).to_json(),
}


def _texts(**given: Any) -> LayoutTexts:
    names = LayoutTexts.__dataclass_fields__
    return LayoutTexts(**{**dict.fromkeys(names), **given})


@pytest.mark.parametrize("form", FORMS)
def test_a_plan_is_read_from_each_document_that_holds_one(tmp_path: Path, form: str) -> None:
    """A plan, an element of a result with or without schema, a result, an estimate: one plan."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(FORMS[form]))
    assert read_plan(str(path)) == PLAN


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Editors on Windows put one in front of UTF-8."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(ELEMENT), encoding="utf-8-sig")
    assert read_plan(str(path)) == PLAN


def test_the_data_degree_takes_what_remains() -> None:
    """16 devices by tensor 2 and pipeline 4 leave 2; a data degree that is given stays."""
    assert _texts(tp="2", pp="4").layout(16).data_parallel == 2
    assert _texts(tp="2", pp="4", dp="1").layout(16).data_parallel == 1
    assert _texts(tp="8").layout(4).data_parallel == 1


def test_flags_that_are_not_there_mean_the_defaults() -> None:
    """A layout of one degree is otherwise the plain one; virtual stages bring their schedule."""
    assert _texts(tp="2").layout(4) == Layout(2, 1, 2)
    assert _texts(pp="4", vpp="2").layout(4).schedule == "interleaved_1f1b"
    assert _texts(split="10, 8,8,6").layers() == (10, 8, 8, 6)


def test_given_names_the_flags() -> None:
    """Switches count when they are off, too."""
    assert _texts(tp="2", micro_batch="1", sequence_parallel=False).given() == [
        "--tp",
        "--micro-batch",
        "--sequence-parallel",
    ]


def test_every_field_of_a_layout_can_be_pinned() -> None:
    """The short names cover what is searched, and each is as good as the full one."""
    assert set(SHORT.values()) == set(Layout.__dataclass_fields__) - {"zero_shards"}
    values = {"sp": "off", "recompute": "full", "schedule": "gpipe"}
    for short, field in SHORT.items():
        value = values.get(short, "1")
        assert read_pins([f"{short}={value}"]) == read_pins([f"{field}={value}"])
