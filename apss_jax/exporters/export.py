"""What an export is: files under their names, and the exporter that writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from apss_jax import __version__
from apss_jax.importers.megatron_model import padded_vocab
from apss_jax.legality.framework_rules import FrameworkRule, Refusal
from apss_jax.legality.launch import Launch

REFUSED = "REFUSED.txt"


@dataclass(frozen=True)
class Export:
    """The files of one plan for one framework; `main` names the one that says the plan."""

    files: dict[str, str]
    main: str

    @property
    def text(self) -> str:
        """Returns the file that says the plan."""
        return self.files[self.main]


WriteFn = Callable[[Launch], Export]
"""Returns the files for a plan that breaks no rule of the framework."""


@dataclass(frozen=True)
class Exporter:
    """One framework: the version that is written for, its rules, and how its files are written."""

    name: str
    title: str
    version: str
    stack: str  # of the library, whose constants describe the framework
    rules: tuple[FrameworkRule, ...]
    write: WriteFn
    file_names: tuple[str, ...]  # of all files that it may write


def refused_text(exporter: Exporter, found: Sequence[Refusal]) -> str:
    """Returns what is written in place of an export: each rule, the reason, the source."""
    lines = [f"{exporter.title} ({exporter.version}) does not take this plan."]
    for each in found:
        lines += ["", f"rule: {each.rule}", f"reason: {each.reason}", f"source: {each.source}"]
    return "\n".join(lines) + "\n"


def header(
    exporter_title: str,
    version: str,
    launch: Launch,
    notes: Sequence[str],
    *,
    trains_prediction: bool = False,
) -> list[str]:
    """Returns the lines that begin a file: what it is for, the plan in words, what to know."""
    plan = launch.plan
    first = f"Written by apss-jax {__version__} for {exporter_title}, {version}."
    named = [text for text in (plan.model, plan.cluster) if text]
    about = [" on ".join(named)] if named else []
    beside = _prediction_notes(launch, trained=trains_prediction)
    return [first, *about, summary(launch), *launch.notes, *beside, *notes]


def _prediction_notes(launch: Launch, *, trained: bool) -> list[str]:
    """Returns what a plan or a framework leaves out of a model; nothing where it is complete."""
    if launch.model is None or not launch.model.mtp_layers:
        return []
    if not launch.num_predictions:
        return ["Multi-token prediction is not part of the plan, and is left out here."]
    return [] if trained else ["The plan counts multi-token prediction; these files leave it out."]


def summary(launch: Launch) -> str:
    """Returns the plan in one line."""
    plan = launch.plan
    degrees = (
        f"tensor {plan.tensor_parallel}, pipeline {plan.pipeline_parallel}, data "
        f"{plan.data_parallel}, context {plan.context_parallel}, expert {plan.expert_parallel}"
    )
    layers = ",".join(map(str, launch.split))
    return f"Plan: {degrees} on {launch.world} devices; layers {layers}"


def vocab_rows(launch: Launch) -> int | None:
    """Returns the rows of the token table, padded so that the tensor ranks cut them evenly."""
    embedding = launch.model.embedding if launch.model else None
    if embedding is None:
        return None
    return padded_vocab(embedding.vocab_size, 1, launch.plan.tensor_parallel)


def commented(lines: Sequence[str], mark: str = "#") -> str:
    """Returns lines as comments of one line each."""
    return "\n".join(f"{mark} {' '.join(line.split())}".rstrip() for line in lines)


def yaml_text(data: dict[str, Any], depth: int = 0) -> str:
    """Returns nested mappings as YAML; everything else is written as JSON, which YAML contains."""
    import json

    lines = []
    for key, value in data.items():
        pad = "  " * depth
        if isinstance(value, dict):
            lines.append(f"{pad}{key}:\n{yaml_text(value, depth + 1)}")
        else:
            lines.append(f"{pad}{key}: {json.dumps(value)}\n")
    return "".join(lines)
