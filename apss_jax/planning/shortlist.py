"""The layouts worth costing for a question, with counts of what was left out."""

from __future__ import annotations

from apss_jax.legality.facts import facts_of
from apss_jax.planning.candidates import Candidates, all_candidates, find_candidates
from apss_jax.planning.enumeration import Pins, pin_violations
from apss_jax.planning.heuristics import Bounds
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.tables import weight_bytes_of
from apss_jax.schema.errors import InputError, Mistake


def shortlist(inputs: Inputs, pins: Pins, *, use_policy: bool) -> Candidates:
    """Returns the layouts that the policy proposes, or all legal ones without it."""
    bounds = bounds_of(inputs)
    if not use_policy:
        return all_candidates(bounds.facts, pins)
    return find_candidates(bounds.facts, bounds, pins)


def bounds_of(inputs: Inputs) -> Bounds:
    """Returns what bounds a question's layouts before any is costed."""
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    tables = inputs.unit_tables.tables
    weight_bytes = weight_bytes_of(inputs.workload)
    return Bounds.of(facts, inputs.cluster, inputs.stack, tables, weight_bytes)


def require_legal(inputs: Inputs, pins: Pins, found: Candidates) -> None:
    """Raises `InputError` with the rules in the way when no layout at all is legal."""
    if found.num_legal:
        return
    facts = facts_of(inputs.model, inputs.cluster, inputs.workload, inputs.stack)
    pinned = ", ".join(f"{name}={_shown(values)}" for name, values in pins.items())
    said = [(v.rule, v.message) for v in pin_violations(facts, pins)]
    said = said or [("--pin", "no legal layout has these values together")]
    raise InputError([_mistake(rule, message, pinned, inputs) for rule, message in said])


def _mistake(rule: str, message: str, pinned: str, inputs: Inputs) -> Mistake:
    given = {
        "positions": ("--seq-len", str(inputs.workload.seq_len), "Give a shorter one"),
        "precision": ("--precision", inputs.workload.precision, "Choose another"),
        "devices": ("--cluster", inputs.cluster.name, "Name a larger cluster, or pin less"),
    }
    flag, value, remedy = given.get(rule, ("--pin", pinned, "Change the value, or pin fewer"))
    return Mistake(None, flag, value, message if rule == "--pin" else f"{rule}: {message}", remedy)


def _shown(values: object) -> str:
    many = values if isinstance(values, list | tuple) else (values,)
    return ",".join(map(str, many))
