"""Each rule both ways, with numbers worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from legality_problems import (
    cluster_of,
    dense_layer,
    facts,
    layout,
    model_of,
    moe_layer,
    scan_layer,
    table_model,
)

from apss_jax.legality.check import RULES, legal_mask, violations
from apss_jax.legality.facts import Facts
from apss_jax.schema.layout import Layout, Layouts


def broken(one: Layout, problem: Facts) -> set[str]:
    """Returns the names of the rules that a layout breaks."""
    return {violation.rule for violation in violations(one, problem)}


def said(one: Layout, problem: Facts) -> str:
    """Returns the only message about a layout."""
    (violation,) = violations(one, problem)
    return violation.message


MOE = facts(model_of(moe_layer(experts=8), repeat=4))
INTERLEAVED = {"schedule": "interleaved_1f1b", "virtual_stages": 2}

# (what is on trial, the problem, a layout that keeps the rule, one that breaks it)
PAIRS = {
    "devices": (facts(), layout(8, 2, 1), layout(8, 2, 2)),
    "heads": (
        facts(model_of(dense_layer(28, width=1792))), layout(7, 1, 1), layout(8, 1, 1),
    ),
    "kv_heads": (
        facts(model_of(dense_layer(24, 6, 1536)), cluster_of(24)), layout(12), layout(4),
    ),
    "widths": (
        facts(model_of(dense_layer(12, width=1028))), layout(4, 1, 1), layout(3, 1, 1),
    ),
    "experts": (MOE, layout(1, 1, 4, expert_parallel=4), layout(1, 1, 16, expert_parallel=16)),
    "expert_groups": (
        MOE, layout(1, 1, 8, expert_parallel=8), layout(1, 1, 4, expert_parallel=8),
    ),
    "positions": (
        facts(model_of(dense_layer(), positions=4096)), layout(), None,
    ),
    "context_kinds": (
        facts(model_of(scan_layer())), layout(8, 1, 1), layout(8, 1, 1, context_parallel=2),
    ),
    "sequence": (
        facts(seq_len=1000), layout(context_parallel=4), layout(context_parallel=8),
    ),
    "batch": (facts(batch=60), layout(1, 1, 4, micro_batch=5), layout(1, 1, 8)),
    "depth": (facts(), layout(1, 14, 1), layout(1, 15, 1)),
    "schedule": (facts(), layout(1, 4, 1, **INTERLEAVED), layout(1, 4, 1, virtual_stages=2)),
    "interleaving": (facts(), layout(1, 2, 1, **INTERLEAVED), layout(1, 1, 1, **INTERLEAVED)),
    "rounds": (
        facts(), layout(1, 4, 1, **INTERLEAVED), layout(1, 5, 1, **INTERLEAVED),
    ),
    "filled": (
        facts(batch=4, stack="nanotron"), layout(1, 4, 1), layout(1, 4, 1, micro_batch=2),
    ),
    "zero": (
        facts(stack="deepspeed"), layout(1, 2, 2, zero_stage=1), layout(1, 2, 2, zero_stage=2),
    ),
    "zero_shards": (
        facts(), layout(1, 1, 8, zero_shards=4), layout(1, 1, 8, zero_shards=3),
    ),
    "optimizer_sharding": (
        facts(stack="torchtitan"), layout(1, 1, 2, zero_stage=2), layout(1, 1, 2, zero_stage=1),
    ),
    "selective_recompute": (
        facts(stack="deepspeed"), layout(recompute="full"), layout(recompute="selective"),
    ),
    "no_context": (
        facts(stack="deepspeed"), layout(1, 2, 2), layout(1, 2, 2, context_parallel=2),
    ),
    "experts_in_pipeline": (
        facts(model_of(moe_layer(experts=8), repeat=4), stack="deepspeed"),
        layout(1, 1, 4, expert_parallel=4),
        layout(1, 2, 4, expert_parallel=4),
    ),
    "equal_stages": (facts(stack="maxtext"), layout(1, 4), layout(1, 8)),
    "full_rounds": (
        facts(stack="maxtext", batch=12), layout(1, 4), layout(1, 4, micro_batch=2),
    ),
    "sequence_parallel": (
        facts(), layout(2, sequence_parallel=True), layout(1, sequence_parallel=True),
    ),
    "table_degrees": (facts(table_model()), layout(4), layout(8)),
    "precision": (facts(precision="fp16"), layout(), None),
    "placement": (facts(cluster=cluster_of(3, 5)), layout(2, 1, 3 - 2), layout(4, 2, 1)),
    "degrees": (facts(), layout(), layout(0)),
}  # fmt: skip


WITHOUT_LAYOUT = {"positions", "precision"}  # which no layout decides; each has a test of its own


def test_every_rule_is_on_trial() -> None:
    """Each rule is in the list above and each of the list is a rule: none is gone."""
    assert set(PAIRS) == {rule.name for rule in RULES}
    assert len(PAIRS) == len(RULES)
    assert {name for name, (_, _, wrong) in PAIRS.items() if wrong is None} == WITHOUT_LAYOUT


@pytest.mark.parametrize("rule", PAIRS)
def test_a_layout_that_keeps_the_rules(rule: str) -> None:
    """The layout beside the one that breaks a rule breaks none."""
    problem, kept, _ = PAIRS[rule]
    assert violations(kept, problem) == ()


@pytest.mark.parametrize("rule", [name for name, pair in PAIRS.items() if pair[2]])
def test_breaking_one_rule_is_reported_alone(rule: str) -> None:
    """A layout that breaks one rule is told about that one."""
    problem, _, wrong = PAIRS[rule]
    assert broken(wrong, problem) == {rule}


def test_learned_positions_bound_the_sequence() -> None:
    """A sequence longer than the learned positions is refused, whatever the layout."""
    problem = facts(model_of(dense_layer(), positions=1024), seq_len=2048)
    assert broken(layout(), problem) == {"positions"}
    assert "1024" in said(layout(), problem)


def test_precision_names_the_device_that_lacks_it() -> None:
    """bf16 on a cluster with one old node is refused and the old type is named."""
    problem = facts(cluster=cluster_of(8, 8, types="no"))
    assert said(layout(), problem).startswith("old cannot compute in bf16")


def test_message_lists_legal_tensor_degrees() -> None:
    """52 heads over 8 ranks: the divisors of 52 are proposed (vllm-project/vllm#2652)."""
    message = said(layout(8), facts(model_of(dense_layer(52, width=832))))
    assert message == (
        "52 attention heads cannot be divided by tensor parallel 8; "
        "legal tensor parallel: 1, 2, 4, 13, 26, 52"
    )


def test_message_lists_legal_data_degrees() -> None:
    """A batch of 2040 takes 12 replicas but not 9; the divisors near 9 are shown."""
    problem = facts(batch=2040)
    assert violations(layout(1, 1, 12), problem) == ()
    assert "legal data parallel: 1, 2, 3, 4, 5, 6, 8, 10, 12, 15" in said(layout(1, 1, 9), problem)


def test_all_broken_rules_are_reported_at_once() -> None:
    """64 heads and 256 experts with degree 3: neither hides the other (vllm-project/vllm#52435)."""
    problem = facts(model_of(moe_layer(256, heads=64)), cluster_of(9, 9), batch=9)
    assert {"heads", "experts", "widths"} <= broken(layout(3, 1, 3, expert_parallel=3), problem)


def test_wrong_degrees_hide_everything_else() -> None:
    """A degree of 0 is the only complaint: the other rules would speak of nonsense."""
    assert said(layout(0, 1, -2), facts()).startswith("tensor_parallel is 0 and data_parallel is")


def test_key_value_heads_may_be_repeated() -> None:
    """8 key/value heads: tensor 4 splits them, 16 repeats each, both are legal."""
    problem = facts(model_of(dense_layer(32, 8)), cluster_of(16))
    assert [violations(layout(degree), problem) for degree in (4, 16)] == [(), ()]


def test_scan_groups_are_not_repeated() -> None:
    """8 groups of a state-space layer cannot be held by 16 ranks."""
    problem = facts(model_of(scan_layer(32, 8)), cluster_of(16))
    assert broken(layout(16), problem) == {"heads"}


@pytest.mark.parametrize(
    ("nodes", "degree", "groups"),
    [
        ((7,), 2, 3),
        ((3, 5), 2, 1 + 2),
        ((3, 5), 4, 0 + 1),
        ((3, 5), 8, 0),
        ((6, 6), 4, 1 + 1),
        ((6, 6), 12, 1),
        ((6, 6), 8, 0),
        ((8, 8, 8, 8), 16, 2),
        ((4, 4, 8), 8, 1),
    ],
)
def test_tensor_groups_do_not_cross_borders(
    nodes: tuple[int, ...], degree: int, groups: int
) -> None:
    """Groups fit node by node; only whole nodes of one size may be joined."""
    problem = facts(cluster=cluster_of(*nodes))
    assert problem.groups_of(np.array([degree])).tolist() == [groups]


def test_domains_join_nodes() -> None:
    """18 nodes of 4 in one NVLink domain are 72 devices: 9 groups of 8; 20 nodes add one of 8."""
    assert facts(cluster=cluster_of(*[4] * 18, per_domain=18)).groups_of(np.array([8]))[0] == 9
    assert facts(cluster=cluster_of(*[4] * 20, per_domain=18)).groups_of(np.array([8]))[0] == 10


def test_sequence_parallelism_divides_each_context_part() -> None:
    """6 tensor ranks do not divide 4096 tokens, 4 do, also with 2 context ranks."""
    problem = facts(model_of(dense_layer(24, width=1536)))
    assert broken(layout(6, sequence_parallel=True), problem) == {"sequence"}
    assert violations(layout(4, context_parallel=2, sequence_parallel=True), problem) == ()


def test_stacks_differ_in_what_they_shard() -> None:
    """ZeRO 3 beside a pipeline is for torchtitan, not for Megatron."""
    sharded = layout(1, 2, 2, zero_stage=3)
    assert broken(sharded, facts(stack="megatron-lm")) == {"zero"}
    assert broken(sharded, facts(stack="torchtitan")) == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"zero_shards": 3}, "legal ZeRO shards: 1, 2, 4, 8"),
        ({"zero_shards": 2, "expert_parallel": 4}, "multiple of expert parallel 4"),
        ({"zero_shards": 4, "zero_stage": 0}, "ZeRO 0 shards nothing"),
    ],
)
def test_groups_that_shard_are_even_and_hold_whole_expert_groups(
    changes: dict[str, int], said: str
) -> None:
    """The message says what is wrong, and which sizes are legal."""
    problem = facts(model_of(moe_layer(experts=8), repeat=4))
    (found,) = violations(layout(1, 1, 8, **changes), problem)
    assert found.rule == "zero_shards" and said in found.message


def test_deepspeed_has_no_interleaved_schedule() -> None:
    """Its pipeline engine runs 1F1B alone."""
    assert broken(layout(1, 2, 1, **INTERLEAVED), facts(stack="deepspeed")) == {"interleaving"}


def test_table_has_no_context_or_expert_costs() -> None:
    """A table of layers knows tensor degrees alone, and its rows are all the pieces there are."""
    problem = facts(table_model(rows=6))
    assert broken(layout(1, 6, 1), problem) == set()
    assert broken(layout(1, 7, 1), problem) == {"depth"}
    assert broken(layout(1, 1, 1, context_parallel=2), problem) == {"table_degrees"}


def test_mask_counts_a_layout_under_its_first_rule() -> None:
    """Three layouts: one legal, one with too many devices and a wrong batch, one wrong batch."""
    rows = Layouts.of([layout(8, 2, 1), layout(8, 2, 3), layout(1, 1, 3)])
    mask, counts = legal_mask(rows, facts())
    assert mask.tolist() == [True, False, False]
    assert counts == {"devices": 1, "batch": 1}


def test_mask_agrees_with_violations() -> None:
    """Many at once is the same as one by one, over a grid of mostly illegal layouts."""
    problem = facts(model_of(moe_layer(6, heads=12), repeat=3), cluster_of(3, 5), batch=12)
    grid = [
        Layout(t, p, d, c, e, v, schedule=("1f1b", "interleaved_1f1b")[v > 1], zero_stage=z)
        for t in (1, 3) for p in (1, 2, 6) for d in (1, 2) for c in (1, 2)
        for e in (1, 2) for v in (1, 2) for z in (1, 2)
    ]  # fmt: skip
    mask, counts = legal_mask(Layouts.of(grid), problem)
    assert mask.tolist() == [violations(one, problem) == () for one in grid]
    assert 0 < mask.sum() == len(grid) - sum(counts.values())


def test_huge_degrees_do_not_overflow() -> None:
    """Products beyond 64 bits still count as too many devices."""
    huge = layout(2**40, 2**20, 2**20)
    assert "devices" in broken(huge, replace(facts(), global_batch=2**40))
