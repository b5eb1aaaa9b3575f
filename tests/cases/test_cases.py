"""Reported cases through `estimate`: who runs out of memory, what is faster, how many GB.

`unmet.json` lists the verdicts that the estimates do not give, each with the reason; a verdict in
it that comes to be given fails here, so that the list stays true.
"""

from typing import Any

import pytest
from case_files import CASE_IDS, UNMET, Case, read_case
from verdicts import VERDICTS, failures

EXCUSED = {(each["case"], each["check"]) for each in UNMET if each["check"] is not None}
CHECKS = [(name, i) for name in CASE_IDS for i in range(len(read_case(name).text["checks"]))]


def _id(value: object) -> str:
    return str(value)


def found(name: str, number: int) -> list[str]:
    """Returns what is not as a check says."""
    case = read_case(name)
    return failures(case, case.text["checks"][number])


@pytest.mark.parametrize(("name", "number"), [c for c in CHECKS if c not in EXCUSED], ids=_id)
def test_a_verdict_is_given(name: str, number: int) -> None:
    """The estimates of a case say what was observed."""
    assert found(name, number) == []


@pytest.mark.parametrize(("name", "number"), sorted(EXCUSED), ids=_id)
def test_a_listed_verdict_is_still_missed(name: str, number: int) -> None:
    """A verdict in the list is not given; once it is, it leaves the list."""
    assert found(name, number) != []


@pytest.mark.parametrize("name", CASE_IDS)
def test_a_case_states_what_it_assumes(name: str) -> None:
    """No column that matters is left to a default, and what the report did not say is in words."""
    case = read_case(name)
    assert {plan: asked.assumed for plan, asked in case.plans.items() if asked.assumed} == {}
    assert case.text["assumed"]
    assert case.text["checks"]


def test_the_list_names_what_there_is() -> None:
    """Every entry has a reason and names a check, or a case that is not carried at all."""
    assert all(len(each["reason"]) > 20 for each in UNMET)
    assert set(CHECKS) >= EXCUSED
    assert {each["case"] for each in UNMET if each["check"] is None}.isdisjoint(CASE_IDS)


OPPOSITES: list[tuple[str, dict[str, Any]]] = [
    ("A13", {"check": "runs_out", "plans": ["8xA100-80"]}),
    ("A13", {"check": "fits", "plans": ["2xA100-80"]}),
    ("A13", {"check": "borderline", "plans": ["2xV100-32"]}),
    ("A13", {"check": "no_plan", "plans": ["8xA100-80"]}),
    ("A30", {"check": "state_gb", "plans": {"16-bytes": 519}, "within_percent": 10}),
    ("A30", {"check": "memory_gb", "plans": {"16-bytes": 1}, "within_percent": 10}),
    (
        "A30",
        {
            "check": "state_parts",
            "plans": ["16-bytes"],
            "bytes_per_parameter": {"weights": 4, "gradients": 2, "optimizer": 12},
            "within_percent": 1,
        },
    ),
    ("B10", {"check": "fastest_first", "plans": ["t8p4v5", "t4p4v5"]}),
    ("B06", {"check": "best", "plans": ["t8p12m2-h64", "t4p12m2-h64"]}),
    ("B05", {"check": "speed_ratio", "plans": ["h64-d216", "h128-d108"], "between": [0.1, 0.9]}),
    ("B05", {"check": "step_ratio", "plans": ["h64-d216", "h128-d108"], "at_least": 2}),
    ("B05", {"check": "step_time_s", "plans": {"h64-d216": 10}, "within_percent": 20}),
    ("B08", {"check": "illegal", "plans": ["t8p2d1"], "rule": "layers"}),
    ("B15", {"check": "memory_rises", "plans": ["d2", "d4"]}),
    ("B10", {"check": "same_memory", "plans": ["t4p4v5", "t8p4v5"], "within_percent": 1}),
    ("B15", {"check": "memory_falls_gb", "plans": ["d4", "d2"], "by": 5, "within_percent": 5}),
    ("B21", {"check": "peak_tflops", "plans": {"h100-dense": 1979}, "within_percent": 1}),
]


@pytest.mark.parametrize(("name", "check"), OPPOSITES, ids=lambda v: str(v)[:40])
def test_a_wrong_expectation_is_seen(name: str, check: dict[str, Any]) -> None:
    """The opposite of what happened, or another figure, is reported as missed."""
    assert failures(read_case(name), check) != []


def test_every_kind_of_check_can_fail() -> None:
    """The wrong expectations above cover all kinds."""
    assert {check["check"] for _, check in OPPOSITES} == set(VERDICTS)


def test_plans_of_a_case_share_what_the_case_says() -> None:
    """A plan adds to the case's columns, and its own go first."""
    case: Case = read_case("A04")
    assert {asked.layout.tensor_parallel for asked in case.plans.values()} == {4}
    assert case.plans["195B-m4"].layout.micro_batch == 4
    assert case.plans["206B"].model.num_layers == 82
