"""The formats by name, and a plan in one of them: its files, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from apss_jax.exporters import bridge, deepspeed, flagscale, jax, maxtext, megatron, torchtitan
from apss_jax.exporters.export import REFUSED, Export, Exporter, refused_text
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.legality.framework_rules import Refusal, refusals
from apss_jax.legality.launch import Launch
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Plan

FORMATS: Final[Mapping[str, Exporter]] = {
    module.EXPORTER.name: module.EXPORTER
    for module in (megatron, bridge, deepspeed, flagscale, torchtitan, maxtext, jax)
}


def launch_of(
    plan: Plan,
    model: Model | str | None = None,
    cluster: ClusterProfile | str | None = None,
    *,
    notes: tuple[str, ...] = (),
) -> Launch:
    """Returns a plan with its model and cluster; those that it names are looked for.

    A name that nothing has leaves them unknown: exports then say what is missing.
    """
    found_model = model if isinstance(model, Model) else _model(model or plan.model)
    found = cluster if isinstance(cluster, ClusterProfile) else _cluster(cluster or plan.cluster)
    return Launch(plan, found_model, found, notes)


def _model(name: str | None) -> Model | None:
    try:
        return load_model(name) if name else None
    except InputError:
        return None


def _cluster(name: str | None) -> ClusterProfile | None:
    try:
        return load_cluster(name) if name else None
    except InputError:
        return None


def exporter_named(name: str) -> Exporter:
    """Returns the exporter of a format; raises `InputError`."""
    if name not in FORMATS:
        remedy = f"Choose from {', '.join(FORMATS)}"
        raise mistake("--export", name, "is no format", remedy)
    return FORMATS[name]


def export_refusals(launch: Launch, name: str) -> tuple[Refusal, ...]:
    """Returns the rules of a format that a plan breaks."""
    return refusals(launch, exporter_named(name).rules)


def export_files(launch: Launch, name: str) -> tuple[dict[str, str], tuple[Refusal, ...]]:
    """Returns an export's files and no refusal, or the text of a refusal and its rules."""
    exporter = exporter_named(name)
    found = export_refusals(launch, name)
    if found:
        return {REFUSED: refused_text(exporter, found)}, found
    return exporter.write(launch).files, ()


def export_of(launch: Launch, name: str) -> Export:
    """Returns the export; raises `InputError` that names each rule which the plan breaks."""
    exporter = exporter_named(name)
    found = export_refusals(launch, name)
    if found:
        rules = "; ".join(f"{each.rule}: {each.reason} ({each.source})" for each in found)
        remedy = f"Search with --stack {exporter.stack}, or choose another format"
        raise mistake("--export", name, f"{exporter.title} refuses the plan: {rules}", remedy)
    return exporter.write(launch)


def export_plan(
    plan: Plan,
    format: str,
    *,
    model: Model | str | None = None,
    cluster: ClusterProfile | str | None = None,
) -> str:
    """Returns the file that says a plan to a framework; raises `InputError` if it is refused.

    Model and cluster are those that the plan names unless given: they add the model's own
    arguments and the hosts.
    """
    return export_of(launch_of(plan, model, cluster), format).text
