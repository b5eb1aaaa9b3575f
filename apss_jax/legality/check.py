"""The rules in order, applied to one layout or to many."""

from __future__ import annotations

from typing import Final

import numpy as np

from apss_jax.legality.cluster_rules import CLUSTER_RULES, DEGREE_RULE
from apss_jax.legality.facts import Facts
from apss_jax.legality.family_rules import FAMILY_RULES
from apss_jax.legality.model_rules import MODEL_RULES
from apss_jax.legality.rule import Mask, Rule
from apss_jax.legality.schedule_rules import SCHEDULE_RULES
from apss_jax.schema.layout import Layout, Layouts
from apss_jax.schema.plan import Violation

RULES: Final[tuple[Rule, ...]] = (
    DEGREE_RULE,
    *CLUSTER_RULES,
    *MODEL_RULES,
    *SCHEDULE_RULES,
    *FAMILY_RULES,
)


def violations(layout: Layout, facts: Facts) -> tuple[Violation, ...]:
    """Returns every rule that a layout breaks, in words; only the first where degrees are wrong."""
    one = Layouts.of([layout])
    rules = (DEGREE_RULE,) if DEGREE_RULE.broken(one, facts)[0] else RULES
    broken = [rule for rule in rules if rule.broken(one, facts)[0]]
    return tuple(Violation(rule=r.name, message=r.message(layout, facts)) for r in broken)


def legal_mask(layouts: Layouts, facts: Facts) -> tuple[Mask, dict[str, int]]:
    """Returns which layouts break no rule, and how many break each rule first, in order."""
    legal = np.ones(len(layouts), dtype=bool)
    counts: dict[str, int] = {}
    for rule in RULES:
        newly = legal & rule.broken(layouts, facts)
        if newly.any():
            counts[rule.name] = int(newly.sum())
            legal &= ~newly
    return legal, counts
