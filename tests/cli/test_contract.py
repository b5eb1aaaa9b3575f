"""The documents that programs rely on: keys, types and exit codes, from real searches."""

import json
from pathlib import Path
from typing import Any

import pytest
from called import CallFn

SEARCH = "--model gpt2 --cluster 1x4xA100-SXM4-80GB --global-batch 32 --seq-len 1024 --top 2 --json"
ESTIMATE = "--model gpt2 --cluster 1x4xA100-SXM4-80GB --global-batch 32 --seq-len 1024 --json"
PLAN_KEYS = {
    "rank": int,
    "tensor_parallel": int,
    "pipeline_parallel": int,
    "data_parallel": int,
    "context_parallel": int,
    "expert_parallel": int,
    "virtual_stages": int,
    "micro_batch": int,
    "num_micro_batches": int,
    "zero_stage": int,
    "sequence_parallel": bool,
    "recompute": str,
    "schedule": str,
    "stages": list,
    "cost": dict,
    "provenance": dict,
    "explanation": list,
}
STAGE_KEYS = {
    "chunks": list,
    "devices": list,
    "device_type": str,
    "forward_s": float,
    "backward_s": float,
    "memory_bytes": dict,
    "oom_probability": float,
    "fits": bool,
}
CHUNK_KEYS = {"first_layer": int, "num_layers": int, "embedding": bool, "head": bool}
MEMORY_PARTS = {"weights", "gradients", "optimizer", "activations", "other"}
COST_KEYS = {
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s",
    "mfu_fraction",
    "bubble_fraction",
    "breakdown_s",
}
BREAKDOWN_KEYS = {
    "compute",
    "tensor_comm",
    "pipeline_bubble",
    "pipeline_comm",
    "data_comm",
    "optimizer",
    "other",
}
_DOCUMENTS: dict[str, dict[str, Any]] = {}


@pytest.fixture
def searched(call: CallFn) -> dict[str, Any]:
    """Returns the document of one real search, made once."""
    if "search" not in _DOCUMENTS:
        done = call("search", *SEARCH.split())
        assert done.code == 0
        _DOCUMENTS["search"] = done.document
    return _DOCUMENTS["search"]


def _has(value: dict[str, Any], keys: dict[str, type]) -> None:
    assert {key: type(value[key]) for key in keys} == keys


def test_the_search_document(searched: dict[str, Any]) -> None:
    """The top level has the keys of the contract, and no shortfall where there are plans."""
    assert set(searched) == {"schema", "plans", "search", "assumptions", "warnings"}
    assert searched["schema"] == "apss.search_result/1"
    assert set(searched["search"]) == {"candidates", "legal", "fits", "dropped", "elapsed_s"}
    assert set(searched["search"]["elapsed_s"]) >= {"total", "load", "partition", "cost"}
    assert [plan["rank"] for plan in searched["plans"]] == [1, 2]


def test_a_plan_has_the_keys_of_the_contract(searched: dict[str, Any]) -> None:
    """Plans, stages and chunks carry each key with its type."""
    for plan in searched["plans"]:
        _has(plan, PLAN_KEYS)
        for stage in plan["stages"]:
            _has(stage, STAGE_KEYS)
            for chunk in stage["chunks"]:
                _has(chunk, CHUNK_KEYS)


def test_the_parts_add_up(searched: dict[str, Any]) -> None:
    """The breakdown adds up to the step time, the memory to its total; the interval holds it."""
    for plan in searched["plans"]:
        cost = plan["cost"]
        assert set(cost) == COST_KEYS and set(cost["breakdown_s"]) == BREAKDOWN_KEYS
        assert sum(cost["breakdown_s"].values()) == pytest.approx(cost["step_time_s"], rel=1e-6)
        assert cost["step_time_low_s"] <= cost["step_time_s"] <= cost["step_time_high_s"]
        for stage in plan["stages"]:
            memory = stage["memory_bytes"]
            assert set(memory) == MEMORY_PARTS | {"total", "capacity"}
            assert sum(memory[k] for k in MEMORY_PARTS) == pytest.approx(memory["total"], rel=1e-6)
            assert stage["fits"] == (stage["oom_probability"] < 0.1)


def test_layers_and_devices_are_given_once(searched: dict[str, Any]) -> None:
    """The chunks are the 12 layers in order; no device has two stages."""
    for plan in searched["plans"]:
        chunks = [c for stage in plan["stages"] for c in stage["chunks"]]
        held = [c["first_layer"] + i for c in chunks for i in range(c["num_layers"])]
        devices = [device for stage in plan["stages"] for device in stage["devices"]]
        assert sorted(held) == list(range(12))
        assert len(devices) == len(set(devices)) <= 4
        assert [c["embedding"] for c in chunks].count(True) == 1


def test_plans_are_ranked_by_time(searched: dict[str, Any]) -> None:
    """The first plan is the fastest."""
    times = [plan["cost"]["step_time_s"] for plan in searched["plans"]]
    assert times == sorted(times)


def test_a_search_gives_the_same_bytes_again(call: CallFn, searched: dict[str, Any]) -> None:
    """Elapsed times aside, the document does not change."""
    again = call("search", *SEARCH.split()).document
    assert json.dumps(_timeless(again)) == json.dumps(_timeless(searched))


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"search": document["search"] | {"elapsed_s": None}}


def test_the_estimate_document(call: CallFn) -> None:
    """An estimate says legal, violations, plan and assumptions."""
    document = call("estimate", *ESTIMATE.split(), "--tp", "2", "--pp", "2").document
    assert set(document) >= {"schema", "legal", "violations", "plan", "assumptions"}
    assert (document["schema"], document["legal"]) == ("apss.estimate/1", True)
    _has(document["plan"], PLAN_KEYS)


def test_an_estimate_repeats_the_search(
    call: CallFn, searched: dict[str, Any], tmp_path: Path
) -> None:
    """The first plan of a result file costs what the search said, with nothing else given."""
    (tmp_path / "result.json").write_text(json.dumps(searched))
    document = call("estimate", "--plan", "result.json", "--json").document
    assert document["legal"]
    assert document["plan"]["cost"] == searched["plans"][0]["cost"]
    assert document["plan"]["stages"] == searched["plans"][0]["stages"]


def test_an_illegal_plan_is_an_answer(call: CallFn) -> None:
    """12 heads do not go into 8 parts: exit code 0, and the rule in words."""
    done = call("estimate", *ESTIMATE.split(), "--tp", "8", "--dp", "1")
    assert (done.code, done.document["legal"]) == (0, False)
    assert all(set(each) == {"rule", "message"} for each in done.document["violations"])
    assert "12" in " ".join(each["message"] for each in done.document["violations"])


def test_a_split_is_kept(call: CallFn) -> None:
    """The layers of each stage are those that the flag gives."""
    words = [*ESTIMATE.split(), "--pp", "4", "--split", "4,3,3,2"]
    stages = call("estimate", *words).document["plan"]["stages"]
    assert [stage["chunks"][0]["num_layers"] for stage in stages] == [4, 3, 3, 2]


def test_nothing_fits(call: CallFn) -> None:
    """8 B parameters at 16 bytes or more are above 80 GB: exit code 3, and what is missing."""
    words = "--model llama-3.1-8b --cluster 1x1xA100-SXM4-80GB --global-batch 4 --json"
    done = call("search", *words.split())
    assert (done.code, done.document["plans"]) == (3, [])
    assert set(done.document["shortfall"]) == {"bytes", "devices", "change"}
    assert done.document["shortfall"]["bytes"] > 16 * 8e9 - 80 * 2**30


def test_pins_hold(call: CallFn) -> None:
    """Every plan has a pinned value."""
    plans = call("search", *SEARCH.split(), "--pin", "tp=2,4", "--pin", "mbs=2").document["plans"]
    assert {plan["micro_batch"] for plan in plans} == {2}
    assert {plan["tensor_parallel"] for plan in plans} <= {2, 4}
