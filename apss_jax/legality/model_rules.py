"""Rules that come from the model: what the degrees must divide."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from apss_jax.legality.facts import Counts, Facts
from apss_jax.legality.rule import Mask, Numbers, Rule, at_least_one, nowhere
from apss_jax.schema.layout import Layout, Layouts


def _indivisible(numbers: Iterable[int], divisor: Numbers) -> Mask:
    found = np.zeros(divisor.shape, dtype=bool)
    for number in numbers:
        found |= number % at_least_one(divisor) != 0
    return found


def _named(counts: Counts, degree: int) -> str:
    """Returns the counts that the degree does not divide, in words."""
    wrong = dict.fromkeys(f"{n} {what}" for what, n in counts if n % max(degree, 1))
    return " and ".join(wrong)


def _heads_broken(layouts: Layouts, facts: Facts) -> Mask:
    return _indivisible((n for _, n in facts.heads), layouts.tensor_parallel)


def _heads_reason(layout: Layout, facts: Facts) -> str:
    degree = layout.tensor_parallel
    return f"{_named(facts.heads, degree)} cannot be divided by tensor parallel {degree}"


def _kv_heads_broken(layouts: Layouts, facts: Facts) -> Mask:
    degree = at_least_one(layouts.tensor_parallel)
    found = nowhere(layouts)
    for _, heads in facts.kv_heads:
        found |= (heads % degree != 0) & (degree % heads != 0)
    return found


def _kv_heads_reason(layout: Layout, facts: Facts) -> str:
    degree = layout.tensor_parallel
    return (
        f"{_named(facts.kv_heads, degree)} can be neither divided by tensor parallel {degree} "
        "nor repeated evenly over it"
    )


def _widths_broken(layouts: Layouts, facts: Facts) -> Mask:
    return _indivisible((n for _, n in facts.widths), layouts.tensor_parallel)


def _widths_reason(layout: Layout, facts: Facts) -> str:
    degree = layout.tensor_parallel
    wrong = " and ".join(f"{what} {n}" for what, n in facts.widths if n % max(degree, 1))
    return f"{wrong} cannot be divided by tensor parallel {degree}"


def _table_broken(layouts: Layouts, facts: Facts) -> Mask:
    if facts.table_degrees is None:
        return nowhere(layouts)
    unknown = ~np.isin(layouts.tensor_parallel, facts.table_degrees)
    split = (layouts.context_parallel > 1) | (layouts.expert_parallel > 1)
    return unknown | split


def _table_reason(layout: Layout, facts: Facts) -> str:
    if max(layout.context_parallel, layout.expert_parallel) > 1:
        return "a table of layers has no costs for context or expert parallelism: use 1 for both"
    known = ", ".join(map(str, facts.table_degrees or ()))
    return (
        f"the table of layers has no times for tensor parallel {layout.tensor_parallel}, only for "
        f"{known}"
    )


def _experts_broken(layouts: Layouts, facts: Facts) -> Mask:
    if not facts.num_experts:
        return layouts.expert_parallel > 1
    return _indivisible(facts.num_experts, layouts.expert_parallel)


def _experts_reason(layout: Layout, facts: Facts) -> str:
    degree = layout.expert_parallel
    if not facts.num_experts:
        return f"expert parallel {degree} needs layers with experts, and the model has none"
    wrong = " and ".join(str(n) for n in facts.num_experts if n % max(degree, 1))
    return f"{wrong} experts cannot be divided by expert parallel {degree}"


def _expert_groups_broken(layouts: Layouts, facts: Facts) -> Mask:
    ranks = layouts.data_parallel * layouts.context_parallel
    return ranks % at_least_one(layouts.expert_parallel) != 0


def _expert_groups_reason(layout: Layout, facts: Facts) -> str:
    ranks = layout.data_parallel * layout.context_parallel
    return (
        f"expert groups lie inside the data x context ranks: {layout.data_parallel} x "
        f"{layout.context_parallel} = {ranks} ranks cannot be divided by expert parallel "
        f"{layout.expert_parallel}"
    )


def _sequence_chunks(layouts: Layouts) -> Numbers:
    """Returns what must divide the sequence.

    Causal attention is balanced by giving each context rank one early and one late half; sequence
    parallelism then divides a rank's part (Megatron-LM, training/arguments.py: 2 x context, and
    tensor x context).
    """
    context = layouts.context_parallel
    halves = np.where(context > 1, 2 * context, 1)
    tensor = np.where(layouts.sequence_parallel > 0, layouts.tensor_parallel, 1)
    return at_least_one(np.lcm(at_least_one(halves), at_least_one(tensor * context)))


def _sequence_broken(layouts: Layouts, facts: Facts) -> Mask:
    return facts.seq_len % _sequence_chunks(layouts) != 0


def _sequence_reason(layout: Layout, facts: Facts) -> str:
    context, tensor = layout.context_parallel, layout.tensor_parallel
    need = f"2 x context parallel {context}" if context > 1 else ""
    if layout.sequence_parallel:
        shared = f"tensor x context = {tensor} x {context} (sequence parallelism)"
        need = f"{need} and {shared}" if need else shared
    return f"a sequence of {facts.seq_len} tokens must be a multiple of {need}"


def _positions_broken(layouts: Layouts, facts: Facts) -> Mask:
    too_long = 0 < facts.num_positions < facts.seq_len
    return np.full(len(layouts), too_long)


def _positions_reason(layout: Layout, facts: Facts) -> str:
    return (
        f"a sequence of {facts.seq_len} tokens is longer than the {facts.num_positions} positions "
        f"that the model has learned embeddings for; use at most {facts.num_positions}"
    )


def _context_kinds_broken(layouts: Layouts, facts: Facts) -> Mask:
    return (layouts.context_parallel > 1) & bool(facts.unsplit_kinds)


def _context_kinds_reason(layout: Layout, facts: Facts) -> str:
    kinds = " and ".join(kind.replace("_", " ") for kind in facts.unsplit_kinds)
    return (
        f"context parallel {layout.context_parallel} cannot split the {kinds} layers of the model"
    )


MODEL_RULES = (
    Rule("table_degrees", _table_broken, _table_reason),
    Rule("heads", _heads_broken, _heads_reason, "tensor_parallel"),
    # Megatron-LM core/transformer/attention.py repeats key/value heads when there are fewer than
    # tensor ranks; older releases demand num_query_groups % tensor == 0 (transformer_config.py).
    Rule("kv_heads", _kv_heads_broken, _kv_heads_reason, "tensor_parallel"),
    Rule("widths", _widths_broken, _widths_reason, "tensor_parallel"),
    Rule("experts", _experts_broken, _experts_reason, "expert_parallel"),
    Rule("expert_groups", _expert_groups_broken, _expert_groups_reason, "expert_parallel"),
    Rule("positions", _positions_broken, _positions_reason),
    Rule("context_kinds", _context_kinds_broken, _context_kinds_reason, "context_parallel"),
    Rule("sequence", _sequence_broken, _sequence_reason, "context_parallel"),
)
