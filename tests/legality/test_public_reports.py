"""What public reports say frameworks accept and refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from legality_problems import cluster_of, dense_layer, facts, layout, model_of, moe_layer

from apss_jax.legality.check import violations
from apss_jax.legality.facts import Facts
from apss_jax.schema.layout import Layout

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the checkout")


def case(name: str) -> dict[str, Any]:
    """Returns one case by its id."""
    return json.loads((CASES / f"{name}.json").read_text())


def verdicts(name: str, problems: dict[str, Facts], **fixed: object) -> dict[str, set[str]]:
    """Returns the broken rules of each strategy of a case."""
    default = problems.get("")
    return {
        s["name"]: {v.rule for v in violations(_layout(s, fixed), problems.get(s["name"], default))}
        for s in case(name)["strategies"]
    }


def _layout(strategy: dict[str, Any], fixed: dict[str, object]) -> Layout:
    virtual = strategy.get("vpp", 1)
    return layout(
        strategy.get("tp", 1),
        strategy.get("pp", 1),
        strategy.get("dp", 1),
        context_parallel=strategy.get("cp", 1),
        expert_parallel=strategy.get("ep", 1),
        virtual_stages=virtual,
        micro_batch=strategy.get("mbs", 1),
        zero_stage=strategy.get("zero", 0),
        schedule="interleaved_1f1b" if virtual > 1 else "1f1b",
        **fixed,
    )


def test_heads_of_llama_33b() -> None:
    """C07: 52 heads take tensor 4, and neither 8 nor 3."""
    problem = facts(model_of(dense_layer(52, width=52 * 24)))
    assert verdicts("C07", {"": problem}) == {"t8": {"heads"}, "t3": {"heads"}, "t4": set()}


def test_deepspeed_pipelines_shard_the_optimizer_at_most() -> None:
    """C09: ZeRO 1 beside a pipeline is accepted, 2 and 3 are not."""
    found = verdicts("C09", {"": facts(stack="deepspeed")})
    assert found == {"pp2-z1": set(), "pp2-z2": {"zero"}, "pp2-z3": {"zero"}}


def test_batches_that_divide() -> None:
    """C11: 2048 over 12 or 9 replicas is refused, 2040 over 12 is not."""
    cluster = cluster_of(8, 8)
    sizes = {s["name"]: s["gbs"] for s in case("C11")["strategies"]}
    problems = {name: facts(cluster=cluster, batch=size) for name, size in sizes.items()}
    found = verdicts("C11", problems)
    assert {name for name, rules in found.items() if rules} == set(case("C11")["expected"]["error"])


def test_nanotron_fills_its_pipeline() -> None:
    """C12: four stages need four micro-batches."""
    counts = {s["name"]: s["micro_batches"] for s in case("C12")["strategies"]}
    problems = {name: facts(batch=count, stack="nanotron") for name, count in counts.items()}
    assert verdicts("C12", problems) == {"p4acc2": {"filled"}, "p4acc4": set()}


def test_all_rules_at_once() -> None:
    """C18: 256 experts by 3 and 64 heads by 3 are both reported."""
    problem = facts(model_of(moe_layer(256, heads=64)), cluster_of(6), batch=6)
    assert {"experts", "heads"} <= verdicts("C18", {"": problem})["ep3"]


def test_interleaving_needs_a_pipeline() -> None:
    """C19: with overlapped transfers two stages are enough, one is not."""
    found = verdicts("C19", {"": facts(stack="megatron-lm")})
    assert found["p1v2"] == {"interleaving"}
    assert found["p2v2-overlap"] == found["p4v2-nooverlap"] == set()


def test_sequences_are_cut_in_two_halves_per_context_rank() -> None:
    """C20: 8192 tokens over 3 context ranks is refused, 1000 over 4 is legal."""
    lengths = {s["name"]: s["seq"] for s in case("C20")["strategies"]}
    problems = {name: facts(seq_len=length) for name, length in lengths.items()}
    found = verdicts("C20", problems)
    assert found == {"s8192cp3": {"sequence"}, "s8192cp8": set(), "s1000cp4": set()}


@pytest.mark.parametrize("name", ["C01", "C05", "C22"])
def test_uneven_pipelines_are_expressible(name: str) -> None:
    """30 on 4, 46 on 4, 126 on 16 stages: legal here, because stages need not be equal."""
    for strategy in case(name)["strategies"]:
        layers = strategy.get("layers") or case(name)["model"]["layers"]
        problem = facts(model_of(dense_layer(), repeat=layers))
        assert violations(layout(1, strategy["pp"]), problem) == ()


def test_sequence_parallelism_without_tensor_ranks() -> None:
    """C23: with one tensor rank there is nothing to share the sequence."""
    strategy = next(s for s in case("C23")["strategies"] if s["name"] == "seqpar-tp1")
    found = violations(layout(strategy["tp"], sequence_parallel=True), facts())
    assert [v.rule for v in found] == ["sequence_parallel"]
