"""Every legal layout of a problem, generated as columns, one block per (tensor, context) degree.

Nothing is assumed about powers of two or about equal nodes. A block holds only legal layouts, so
the rules are applied to single degrees before degrees are combined, and combinations are filtered
as soon as the degrees they depend on are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from apss_jax.legality.check import RULES, violations
from apss_jax.legality.facts import Facts
from apss_jax.legality.family_rules import FAMILY_RULES
from apss_jax.legality.rule import Rule
from apss_jax.schema.layout import RECOMPUTE, SCHEDULES, Column, Layout, Layouts
from apss_jax.schema.plan import Violation

Pins = Mapping[str, Any]
"""Field of `Layout` -> the value, or a tuple of the values, that it may have."""

FIELDS: Final = tuple(field.name for field in fields(Layouts))
# Over how many ranks ZeRO shards is costed where a plan says it, and not searched.
PINNABLE: Final = tuple(name for name in FIELDS if name != "zero_shards")
CODES: Final[dict[str, tuple[Any, ...]]] = {
    "recompute": RECOMPUTE,
    "schedule": SCHEDULES,
    "sequence_parallel": (False, True),
}
USUAL_SCHEDULES: Final = ("1f1b", "interleaved_1f1b")  # GPipe holds more and is no faster
TENSOR_RULES: Final = frozenset({"table_degrees", "heads", "kv_heads", "widths", "placement"})
CONTEXT_RULES: Final = frozenset({"table_degrees", "context_kinds", "sequence"})
EXPERT_RULES: Final = frozenset({"table_degrees", "experts"})
Values = Shaped[np.ndarray, " _"]
Columns = dict[str, Values]


def enumerate_layouts(facts: Facts, pins: Pins | None = None) -> Layouts:
    """Returns every legal layout; for large problems `layout_blocks` needs less memory at once."""
    blocks = list(layout_blocks(facts, pins))
    empty = np.zeros(0, dtype=np.int32)
    columns = [[getattr(block, name) for block in blocks] or [empty] for name in FIELDS]
    return Layouts(*(np.concatenate(parts) for parts in columns))


def layout_blocks(facts: Facts, pins: Pins | None = None) -> Iterator[Layouts]:
    """Yields every legal layout, one block for each pair of tensor and context degree.

    Where several values would mean the same run, one is listed: ZeRO only where a group shares
    parameters, sequence parallelism wherever it applies and the stack has it, GPipe and other
    choices only when pinned.
    """
    axes = _Axes(facts, pins or {})
    if not axes.is_possible:
        return
    for tensor in axes.tensor:
        for context in axes.context:
            block = axes.block(int(tensor), int(context))
            if len(block):
                yield block


def pin_violations(facts: Facts, pins: Pins) -> tuple[Violation, ...]:
    """Returns what is wrong with the first pinned values when nothing else stands in their way."""
    first = {name: values[0] for name, values in _pinned(pins).items()}
    if first.get("sequence_parallel"):
        first.setdefault("tensor_parallel", 2)
    if first.get("virtual_stages", 1) > 1:
        first.setdefault("pipeline_parallel", 2)
        first.setdefault("schedule", "interleaved_1f1b")
    context = first.get("context_parallel", 1)
    first.setdefault("data_parallel", max(first.get("expert_parallel", 1) // max(context, 1), 1))
    return violations(replace(Layout(1, 1, 1), **first), facts)


def _pinned(pins: Pins) -> dict[str, tuple[Any, ...]]:
    unknown = sorted(set(pins) - set(PINNABLE))
    if unknown:
        raise ValueError(
            f"no degree is called {', '.join(unknown)}; there are {', '.join(PINNABLE)}"
        )
    several = (tuple, list, range)
    return {
        name: tuple(value) if isinstance(value, several) else (value,)
        for name, value in pins.items()
    }


def divisors(number: int) -> Values:
    """Returns the divisors of a number, ascending."""
    small = np.arange(1, int(number**0.5) + 1)
    small = small[number % small == 0]
    return np.unique(np.concatenate([small, number // small]))


def _crossed(columns: Columns, **more: Values) -> Columns:
    """Returns every row with every row of further columns, which all have one length."""
    times = len(next(iter(more.values())))
    rows = len(next(iter(columns.values())))
    old = columns
    if times != 1:
        old = {name: np.repeat(column, times) for name, column in columns.items()}
    return {**old, **{name: np.tile(column, rows) for name, column in more.items()}}


def _counted(columns: Columns, name: str, first: int, last: Values) -> Columns:
    """Returns every row with each whole number from `first` to the row's `last`."""
    times = np.maximum(last - first + 1, 0)
    starts = np.repeat(np.cumsum(times) - times, times)
    old = {key: np.repeat(column, times) for key, column in columns.items()}
    return {**old, name: np.arange(times.sum()) - starts + first}


def _where(columns: Columns, mask: Values) -> Columns:
    if mask.all():
        return columns
    return {name: column[mask] for name, column in columns.items()}


class _Axes:
    """The values of each degree that can be legal at all, and their combination."""

    def __init__(self, facts: Facts, pins: Pins) -> None:
        self.facts = facts
        self.pins = _pinned(pins)
        limit = np.arange(1, facts.num_devices + 1)
        self.tensor = self._single("tensor_parallel", limit, TENSOR_RULES)
        self.context = self._single("context_parallel", limit, CONTEXT_RULES)
        experts = np.arange(1, max(facts.num_experts, default=1) + 1)
        self.expert = self._single("expert_parallel", experts, EXPERT_RULES)
        self.divisors = divisors(facts.global_batch)
        self.data = self._allowed("data_parallel", self.divisors)
        self.micro_batch = self._allowed("micro_batch", self.divisors)

    @property
    def is_possible(self) -> bool:
        """Whether rules that no degree can mend are kept."""
        return not (_named({"positions", "precision"}, self.facts))

    def block(self, tensor: int, context: int) -> Layouts:
        """Returns every legal layout with these two degrees."""
        groups = int(self.facts.groups_by_degree[tensor]) // context
        data = self.data[self.data <= groups]
        rows = _crossed({"data_parallel": data}, micro_batch=self.micro_batch)
        samples = rows["data_parallel"] * rows["micro_batch"]
        rows = _where(rows, self.facts.global_batch % samples == 0)
        rows = self._with_pipeline(rows, groups)
        rows = self._with_experts(rows, context)
        rows = self._with_sharding(rows, context)
        rows = _crossed(rows, recompute=self._codes("recompute", RECOMPUTE))
        rows = self._with_sequence_parallel(rows, tensor, context)
        size = len(rows["data_parallel"])
        rows["tensor_parallel"] = np.full(size, tensor)
        rows["context_parallel"] = np.full(size, context)
        rows["zero_shards"] = np.zeros(size, dtype=np.int64)
        found = Layouts(**{name: rows[name].astype(np.int32) for name in FIELDS})
        refused = [rule.broken(found, self.facts) for rule in FAMILY_RULES]
        return found.take(~np.any(refused, axis=0)) if np.any(refused) else found

    def _with_pipeline(self, rows: Columns, groups: int) -> Columns:
        units = self.facts.num_units
        deepest = np.minimum(groups // rows["data_parallel"], units)
        rows = self._kept(_counted(rows, "pipeline_parallel", 1, deepest), "pipeline_parallel")
        counts = self.facts.global_batch // (rows["data_parallel"] * rows["micro_batch"])
        if self.facts.family.fills_pipeline:
            full = counts >= rows["pipeline_parallel"]
            rows, counts = _where(rows, full), counts[full]
        stages = rows["pipeline_parallel"]
        even = (stages > 1) & (counts % stages == 0) & self.facts.family.interleaving
        rows = _counted(rows, "virtual_stages", 1, np.where(even, units // stages, 1))
        rows = self._kept(rows, "virtual_stages")
        rows = _crossed(rows, schedule=self._codes("schedule", USUAL_SCHEDULES))
        interleaved = rows["schedule"] == SCHEDULES.index("interleaved_1f1b")
        return _where(rows, interleaved == (rows["virtual_stages"] > 1))

    def _with_experts(self, rows: Columns, context: int) -> Columns:
        rows = _crossed(rows, expert_parallel=self.expert)
        ranks = rows["data_parallel"] * context
        return _where(rows, ranks % rows["expert_parallel"] == 0)

    def _with_sharding(self, rows: Columns, context: int) -> Columns:
        stages = self._allowed("zero_stage", np.arange(4))
        rows = _crossed(rows, zero_stage=stages)
        limit = self.facts.family.max_zero_with_pipeline
        legal = (rows["pipeline_parallel"] == 1) | (rows["zero_stage"] <= limit)
        shared = rows["data_parallel"] * context > 1
        return _where(rows, legal & (shared | (rows["zero_stage"] == stages.min(initial=3))))

    def _with_sequence_parallel(self, rows: Columns, tensor: int, context: int) -> Columns:
        facts = self.facts
        parts = np.lcm(2 * context if context > 1 else 1, tensor * context)
        legal = tensor > 1 and not facts.is_table and facts.seq_len % int(parts) == 0
        default = legal and facts.family.sequence_parallel
        wanted = self.pins.get("sequence_parallel", (default,))
        values = [int(value) for value in wanted if legal or not value]
        return _crossed(rows, sequence_parallel=np.array(values, dtype=np.int64))

    def _single(self, name: str, values: Values, rules: frozenset[str]) -> Column:
        """Returns the values of one degree that keep the rules which look at it alone."""
        ones = Layouts.of([Layout(1, 1, 1)])
        columns = {key: np.repeat(getattr(ones, key), len(values)) for key in FIELDS}
        layouts = Layouts(**{**columns, name: values})
        broken = [rule.broken(layouts, self.facts) for rule in RULES if rule.name in rules]
        return self._allowed(name, values[~np.any(broken, axis=0)])

    def _allowed(self, name: str, values: Values) -> Values:
        return values[np.isin(values, self.pins[name])] if name in self.pins else values

    def _kept(self, rows: Columns, name: str) -> Columns:
        if name not in self.pins:
            return rows
        return _where(rows, np.isin(rows[name], self.pins[name]))

    def _codes(self, name: str, usual: Sequence[Any]) -> Values:
        wanted = self.pins.get(name, usual)
        return np.array([CODES[name].index(value) for value in wanted], dtype=np.int64)


def _named(names: set[str], facts: Facts) -> tuple[Rule, ...]:
    """Returns those of the named rules that every layout breaks."""
    one = Layouts.of([Layout(1, 1, 1)])
    return tuple(rule for rule in RULES if rule.name in names and rule.broken(one, facts)[0])
