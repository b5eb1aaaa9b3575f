"""The enumeration is every legal layout and nothing else."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from legality_problems import cluster_of, dense_layer, facts, model_of, moe_layer, table_model

from apss_jax.legality.check import legal_mask
from apss_jax.legality.facts import Facts
from apss_jax.planning.enumeration import (
    PINNABLE,
    Pins,
    divisors,
    enumerate_layouts,
    layout_blocks,
    pin_violations,
)
from apss_jax.schema.layout import RECOMPUTE, Layout, Layouts

ODD = {
    "7 devices in one node": facts(
        model_of(dense_layer(28, width=1792), repeat=4), cluster_of(7), batch=14, seq_len=64
    ),
    "nodes of 3 and 5": facts(
        model_of(dense_layer(12, 4, 1536), repeat=2), cluster_of(3, 5), batch=6, seq_len=24
    ),
    "6 devices per node": facts(
        model_of(dense_layer(36, width=1152), repeat=3), cluster_of(6), batch=12, seq_len=36
    ),
    "experts": facts(
        model_of(moe_layer(6, heads=12), repeat=2), cluster_of(4), batch=4, seq_len=16
    ),
    "a table": facts(table_model(rows=3), cluster_of(4), batch=8, seq_len=16),
    "torchtitan": facts(stack="torchtitan", cluster=cluster_of(4), batch=4, seq_len=16),
    "nanotron": facts(stack="nanotron", cluster=cluster_of(4), batch=4, seq_len=16),
    "deepspeed": facts(
        model_of(moe_layer(4, heads=12), repeat=2),
        cluster_of(4),
        stack="deepspeed",
        batch=4,
        seq_len=16,
    ),
    "maxtext": facts(stack="maxtext", cluster=cluster_of(4), batch=6, seq_len=16),
}


def by_brute_force(problem: Facts) -> set[Layout]:
    """Returns every combination of degrees that breaks no rule, one of each kind of run."""
    degrees = range(1, problem.num_devices + 1)
    experts = range(1, max(problem.num_experts, default=1) + 1)
    grid = [
        Layout(
            t,
            p,
            d,
            c,
            e,
            v,
            m,
            zero_stage=0,
            schedule="interleaved_1f1b" if v > 1 else "1f1b",
        )
        for t, p, d, c in product(degrees, degrees, degrees, degrees)
        if t * p * d * c <= problem.num_devices
        for e, m in product(experts, range(1, problem.global_batch // d + 1))
        for v in range(1, max(problem.num_units // p, 1) + 1)
    ]
    return {row for one in legal(grid, problem) for row in variants(one, problem)}


def legal(layouts: list[Layout], problem: Facts) -> list[Layout]:
    """Returns the layouts that break no rule."""
    mask, _ = legal_mask(Layouts.of(layouts), problem)
    return [one for one, kept in zip(layouts, mask, strict=True) if kept]


def variants(one: Layout, problem: Facts) -> list[Layout]:
    """Returns the shardings and recomputations of one layout, sequence parallel where it can be."""
    stages = range(4) if one.data_parallel * one.context_parallel > 1 else (0,)
    shared = legal([replace(one, sequence_parallel=True)], problem)
    can_share = problem.family.sequence_parallel and bool(shared)
    rows = [
        replace(one, zero_stage=zero, recompute=recompute, sequence_parallel=can_share)
        for zero, recompute in product(stages, RECOMPUTE)
    ]
    return legal(rows, problem)


@pytest.mark.parametrize("name", ODD)
def test_enumeration_is_brute_force(name: str) -> None:
    """Nested loops over every degree find the same layouts, each once."""
    listed = list(enumerate_layouts(ODD[name]))
    expected = by_brute_force(ODD[name])
    assert len(listed) == len(set(listed))
    assert set(listed) == expected
    assert expected


def test_everything_listed_is_legal_on_a_real_size() -> None:
    """1,024 devices, 80 layers, batch 1,024: no row breaks a rule."""
    model = model_of(dense_layer(64, 8, 8192), repeat=80)
    problem = facts(model, cluster_of(*[8] * 128), batch=1024)
    sizes = []
    for block in layout_blocks(problem):
        mask, counts = legal_mask(block, problem)
        assert mask.all(), counts
        sizes.append(len(block))
    assert sum(sizes) > 100_000


def test_amp_layouts_are_all_there() -> None:
    """4 nodes of 4, batch 32: every power-of-two (tensor, data, micro-batch) of AMP's search."""
    problem = facts(model_of(dense_layer(16, width=1024), repeat=24), cluster_of(4, 4, 4, 4), 32)
    listed = {
        (one.tensor_parallel, one.data_parallel, one.pipeline_parallel, one.micro_batch)
        for one in enumerate_layouts(problem, {"context_parallel": 1, "zero_stage": (0, 1)})
    }
    expected = {
        (tensor, data, 16 // (tensor * data), micro)
        for tensor, data, micro in product((1, 2, 4), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32))
        if tensor * data <= 16 and 32 % (data * micro) == 0
    }
    assert expected <= listed


@pytest.mark.parametrize(
    ("pins", "field", "values"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel", {2}),
        ({"tensor_parallel": (1, 4)}, "tensor_parallel", {1, 4}),
        ({"zero_stage": 1}, "zero_stage", {1}),
        ({"recompute": "full"}, "recompute", {RECOMPUTE.index("full")}),
        ({"schedule": "gpipe"}, "schedule", {2}),
        ({"virtual_stages": 3}, "schedule", {1}),
        ({"pipeline_parallel": (2, 3)}, "pipeline_parallel", {2, 3}),
        ({"sequence_parallel": False}, "sequence_parallel", {0}),
        ({"micro_batch": 4}, "micro_batch", {4}),
    ],
)
def test_pins_are_kept(pins: Pins, field: str, values: set[int]) -> None:
    """A pinned field has the pinned values alone, and the others are a part of what was there."""
    problem = facts(cluster=cluster_of(8), batch=24)
    pinned = enumerate_layouts(problem, pins)
    assert set(getattr(pinned, field).tolist()) == values
    if pins.keys() <= {"tensor_parallel", "recompute", "pipeline_parallel", "micro_batch"}:
        everything = enumerate_layouts(problem)
        assert len(pinned) == np.isin(getattr(everything, field), list(values)).sum()


def test_pinning_everything_gives_one_layout() -> None:
    """Every degree pinned to a legal layout gives that layout."""
    wanted = Layout(2, 2, 2, micro_batch=3, zero_stage=1, recompute="full", sequence_parallel=True)
    pins: dict[str, Any] = {name: vars(wanted)[name] for name in PINNABLE}
    assert list(enumerate_layouts(facts(cluster=cluster_of(8), batch=24), pins)) == [wanted]


def test_impossible_pins_are_explained() -> None:
    """Tensor 5 gives nothing for 32 heads, and the reason is told with the legal degrees."""
    assert len(enumerate_layouts(facts(), {"tensor_parallel": 5})) == 0
    rules = [v.rule for v in pin_violations(facts(), {"tensor_parallel": 5})]
    assert rules == ["heads", "widths"]


@pytest.mark.parametrize(
    "pins", [{"virtual_stages": 2}, {"sequence_parallel": True}, {"zero_stage": 3}]
)
def test_possible_pins_have_nothing_wrong(pins: Pins) -> None:
    """A pin that needs other degrees is judged together with them."""
    assert pin_violations(facts(), pins) == ()


def test_unknown_pins_are_refused() -> None:
    """A misspelt degree is an error, not an empty answer."""
    with pytest.raises(ValueError, match="no degree is called tensor"):
        enumerate_layouts(facts(), {"tensor": 2})


def test_nothing_is_listed_where_nothing_can_run() -> None:
    """A sequence beyond the learned positions leaves no layout."""
    problem = facts(model_of(dense_layer(), positions=1024), seq_len=2048)
    assert len(enumerate_layouts(problem)) == 0


def test_divisors() -> None:
    """60 has twelve divisors, 49 has three."""
    assert divisors(60).tolist() == [1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60]
    assert divisors(49).tolist() == [1, 7, 49]
