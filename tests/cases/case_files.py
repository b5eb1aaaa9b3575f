"""Cases that people reported, as estimates: the columns of a runs table say what was run.

A case holds what its plans share (`run`), what each adds (`plans`), constants of the stack that it
knows better, and checks of the verdicts. Columns that a case leaves blank are filled as those of a
runs table are, and listed in `left_to_defaults`.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from apss_jax.calibration.cluster_of_run import cluster_of_run
from apss_jax.calibration.gaps import Gaps
from apss_jax.calibration.layout_of_run import Degrees, batch_of_run, layout_of_run
from apss_jax.calibration.model_of_run import model_of_run
from apss_jax.importers.clusters import load_stack
from apss_jax.importers.frameworks import framework_named
from apss_jax.importers.load import load_model
from apss_jax.planning.estimate import estimate_plan
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Estimate
from apss_jax.schema.runs import Run
from apss_jax.schema.stack import Stack

DATA = Path(__file__).parent / "data"
UNMET = json.loads((Path(__file__).parent / "unmet.json").read_text())
CASE_IDS = sorted(file.stem for file in DATA.glob("*.json"))
BLANK_WITHOUT_EFFECT = {"interconnect", "peak_flops"}  # of one node; of a variant's nominal rate


@dataclass(frozen=True, eq=False)
class Asked:
    """One plan of a case as the planner takes it."""

    model: Model
    cluster: ClusterProfile
    layout: Layout
    global_batch: int
    seq_len: int
    precision: str
    stack: Stack
    assumed: tuple[str, ...]

    @cache  # noqa: B019 - a case's few plans live as long as the tests
    def estimate(self) -> Estimate:
        """Returns the estimate, made once."""
        return estimate_plan(
            self.model,
            self.cluster,
            self.layout,
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            precision=self.precision,
            stack=self.stack,
        )


@dataclass(frozen=True, eq=False)
class Case:
    """A reported case."""

    text: dict[str, Any]
    plans: dict[str, Asked]


@cache
def read_case(name: str) -> Case:
    """Returns a case of the folder `data`."""
    text = json.loads((DATA / f"{name}.json").read_text())
    shared = {key: text[key] for key in ("model", "constants") if key in text}
    plans = {
        plan: _asked({**shared, **text["run"], **columns})
        for plan, columns in text["plans"].items()
    }
    return Case(text, plans)


def _asked(columns: dict[str, Any]) -> Asked:
    named, constants = columns.pop("model", None), columns.pop("constants", {})
    if named is not None:  # a named model has its sizes; the columns of a run need some
        columns = {"num_layers": 1, "hidden": 1, **columns}
    run, gaps = Run.model_validate(columns), Gaps()
    model = _model(named, run, gaps)
    cluster = cluster_of_run(run, gaps)
    framework = framework_named(run.framework)
    experts = any(isinstance(part.layer.feed_forward, MoeMlp) for part in model.layers)
    degrees = Degrees(run.dp or 1, run.tp or 1, run.pp or 1, run.cp or 1)
    layout = layout_of_run(run, degrees, framework, gaps, has_experts=experts)
    kernels = {
        "fused_norm": bool(gaps.fill("fused_norm", run.fused_norm, 1)),
        "flash_attention": bool(gaps.fill("flash_attention", run.flash_attention, 2)),
    }
    return Asked(
        model=model,
        cluster=cluster,
        layout=layout,
        global_batch=batch_of_run(run, layout, gaps)[0],
        seq_len=gaps.fill("seq_len", run.seq_len, 2048),
        precision=gaps.fill("precision", run.precision, "bf16"),
        stack=load_stack(framework.stack).model_copy(update={**kernels, **constants}),
        assumed=tuple(sorted(set(gaps.assumed) - BLANK_WITHOUT_EFFECT)),
    )


@cache
def _named_model(name: str) -> Model:
    return load_model(name)


def _model(named: str | dict[str, Any] | None, run: Run, gaps: Gaps) -> Model:
    if named is None:
        return model_of_run(run, gaps)
    return _named_model(named) if isinstance(named, str) else Model.from_json(named)
