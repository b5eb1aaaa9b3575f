"""The carried cases against the collection that they come from, where it is at hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from case_files import CASE_IDS, UNMET, read_case

ORIGINALS = Path(__file__).parents[3] / "shared" / "data" / "cases"
SAME = {"tp": "tp", "pp": "pp", "dp": "dp", "mbs": "micro_batch", "ep": "ep", "cp": "cp"}
KINDS = {"oom": "runs_out", "fits": "fits", "borderline": "borderline"}

pytestmark = pytest.mark.skipif(not ORIGINALS.exists(), reason="the collection is not here")


def original(name: str) -> dict[str, Any]:
    """Returns the original of a case."""
    return json.loads((ORIGINALS / f"{name}.json").read_text())


def said(name: str, kind: str) -> set[str]:
    """Returns the plans of a case that checks of one kind name."""
    checks = read_case(name).text["checks"]
    return {plan for check in checks if check["check"] == kind for plan in check["plans"]}


def test_every_original_is_carried_or_listed() -> None:
    """Cases of classes A and B are in the folder, or in the list with a reason."""
    listed = {each["case"] for each in UNMET if each["check"] is None}
    assert {f.stem for f in ORIGINALS.glob("[AB]*.json")} == {*CASE_IDS, *listed}


@pytest.mark.parametrize("name", CASE_IDS)
def test_plans_are_those_of_the_original(name: str) -> None:
    """Each original strategy is a plan with the same degrees, or is left out with a reason."""
    text = read_case(name).text
    for strategy in original(name)["strategies"]:
        plan = strategy["name"]
        if plan in text.get("left_out", {}):
            continue
        columns = {**text["run"], **text["plans"][plan]}
        given = {key: strategy[key] for key in SAME if isinstance(strategy.get(key), int)}
        assert given == {key: columns.get(SAME[key], 1) for key in given}


@pytest.mark.parametrize("name", CASE_IDS)
def test_verdicts_are_those_of_the_original(name: str) -> None:
    """Who fits and who does not is checked for every plan that the original says it of."""
    expected, carried = original(name)["expected"], set(read_case(name).text["plans"])
    for key, kind in KINDS.items():
        assert set(expected.get(key, ())) & carried <= said(name, kind)


@pytest.mark.parametrize("name", CASE_IDS)
def test_orders_are_those_of_the_original(name: str) -> None:
    """An expected order stands in a check, without the plans that are left out."""
    expected, carried = original(name)["expected"], read_case(name).text["plans"]
    order = [plan for plan in expected.get("rank_fastest_first", ()) if plan in carried]
    checks = read_case(name).text["checks"]
    found = [list(c["plans"]) for c in checks if c["check"] == "fastest_first"]
    assert order in found or len(order) < 2
    assert expected.get("best") in (None, *(c["plans"][0] for c in checks if c["check"] == "best"))


@pytest.mark.parametrize("name", CASE_IDS)
def test_sizes_are_those_of_the_original(name: str) -> None:
    """Expected GB, GiB and MiB stand in a check, as GB."""
    expected, checks = original(name)["expected"], read_case(name).text["checks"]
    units = {"mem_gb": 1.0, "mem_gib": 2**30 / 1e9, "mem_mb": 2**20 / 1e9}
    sizes = {c: s * u for k, u in units.items() for c, s in expected.get(k, {}).items()}
    held = [c["plans"] for c in checks if c["check"] == "memory_gb"]
    assert sizes == {} or any(
        plan in plans and plans[plan] == pytest.approx(size, rel=2e-3)
        for plans in held
        for plan, size in sizes.items()
    )
    assert all(plan in {p for plans in held for p in plans} for plan in sizes)
