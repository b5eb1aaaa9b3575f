"""What a rule is: a name, which layouts break it, and how it says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from jaxtyping import Bool, Int, Num

from apss_jax.legality.facts import Facts
from apss_jax.schema.layout import Layout, Layouts

Mask = Bool[np.ndarray, " batch"]
Numbers = Num[np.ndarray, " batch"]
BrokenFn = Callable[[Layouts, Facts], Mask]
"""Returns where layouts break the rule; degrees below 1 must not make it fail."""

ReasonFn = Callable[[Layout, Facts], str]
"""Returns the numbers of one layout that breaks the rule, as a sentence without its full stop."""

SHOWN: Final = 12  # legal values that a message lists at most: the nearest ones
LARGEST: Final = 65_536  # beyond which no legal value is looked for
SHORT: Final = {
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "data_parallel": "data parallel",
    "context_parallel": "context parallel",
    "expert_parallel": "expert parallel",
    "virtual_stages": "virtual stages",
    "micro_batch": "micro-batch",
    "zero_stage": "ZeRO stage",
    "zero_shards": "ZeRO shards",
}


@dataclass(frozen=True)
class Rule:
    """A named rule. `field` is what a message proposes to change; None where nothing helps."""

    name: str
    broken: BrokenFn
    reason: ReasonFn
    field: str | None = None

    def message(self, layout: Layout, facts: Facts) -> str:
        """Returns what is wrong, and which values of `field` would keep this rule."""
        said = self.reason(layout, facts)
        if self.field is None:
            return said
        legal = legal_values(self, layout, facts)
        if not legal:
            return f"{said}; no {SHORT[self.field]} is legal here"
        return f"{said}; legal {SHORT[self.field]}: {_listed(legal, getattr(layout, self.field))}"


def legal_values(rule: Rule, layout: Layout, facts: Facts) -> list[int]:
    """Returns the values of the rule's field that keep this rule, the rest of the layout fixed."""
    if rule.field is None:
        return []
    values = _range(rule.field, facts)
    columns = {f.name: np.repeat(getattr(Layouts.of([layout]), f.name), len(values))
               for f in fields(Layouts)}  # fmt: skip
    columns[rule.field] = values
    return values[~rule.broken(Layouts(**columns), facts)].tolist()


def _range(field: str, facts: Facts) -> Int[np.ndarray, " batch"]:
    largest = {
        "tensor_parallel": max([facts.num_devices, *(n for _, n in facts.heads)]),
        "pipeline_parallel": facts.num_units,
        "virtual_stages": facts.num_units,
        "micro_batch": facts.global_batch,
        "zero_stage": 3,
    }.get(field, max([facts.num_devices, *facts.num_experts]))
    return np.arange(0 if field == "zero_stage" else 1, min(largest, LARGEST) + 1)


def _listed(legal: list[int], chosen: int) -> str:
    """Returns the legal values, those nearest to the chosen one where there are many."""
    if len(legal) <= SHOWN:
        return ", ".join(map(str, legal))
    near = sorted(legal, key=lambda value: abs(value - chosen))[:SHOWN]
    return f"{', '.join(map(str, sorted(near)))} and {len(legal) - SHOWN} more"


def at_least_one(column: Numbers) -> Numbers:
    """Returns a column that can divide."""
    return np.maximum(column, 1)


def nowhere(layouts: Layouts) -> Mask:
    """Returns a mask that is false for every layout."""
    return np.zeros(len(layouts), dtype=bool)
