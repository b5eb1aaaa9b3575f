"""Reads a plan from the file of a plan, of a search result, or of an estimate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from apss_jax.cli.values import LARGEST
from apss_jax.schema.errors import InputError, mistake

if TYPE_CHECKING:
    from apss_jax.schema.plan import Plan


def read_plan(path: str) -> Plan:
    """Returns the plan in a file: of a search result the first one; raises `InputError`.

    An element of a result's `plans` counts as a plan with and without its `schema`.
    """
    return read_plans(path, 1)[0]


def read_plans(path: str, most: int) -> list[Plan]:
    """Returns the first plans of a search result, else the one plan in a file."""
    from apss_jax.schema.document import read_json

    return [_plan(place, data, path) for place, data in _plans_in(read_json(path), path)[:most]]


def _plan(place: str, data: Any, path: str) -> Plan:
    from apss_jax.schema.plan import Plan

    body = {"schema": Plan.SCHEMA, **data} if isinstance(data, dict) else data
    try:
        plan = Plan.from_json(body, file=path)
    except InputError as error:
        raise InputError([replace(m, key=f"{place}{m.key}") for m in error.mistakes]) from None
    _refuse_huge(plan, place, path)
    return plan


def _refuse_huge(plan: Plan, place: str, path: str) -> None:
    """Raises `InputError` for a degree or count that arrays of whole numbers cannot hold."""
    for name, value in plan:
        if isinstance(value, int) and value > LARGEST:
            rule = f"must be at most {LARGEST}"
            raise mistake(f"{place}{name}", value, rule, "Correct the value", file=path)


def _plans_in(data: Any, path: str) -> list[tuple[str, Any]]:
    """Returns where in the file each plan stands, and the plans."""
    from apss_jax.schema.document import version_of, wrong_schema
    from apss_jax.schema.plan import Estimate, SearchResult

    schema = data.get("schema") if isinstance(data, dict) else None
    for kind in (Estimate, SearchResult):
        if schema != kind.SCHEMA and version_of(kind, schema) is not None:
            raise wrong_schema(kind, schema, file=path)
    if schema == Estimate.SCHEMA:
        return [("plan.", data.get("plan"))]
    if schema != SearchResult.SCHEMA:
        return [("", data)]
    plans = data.get("plans")
    if not isinstance(plans, list) or not plans:
        remedy = "Name a file with a plan in it"
        raise mistake("plans", plans, "must hold at least one plan", remedy, file=path)
    return [(f"plans.{i}.", plan) for i, plan in enumerate(plans)]
