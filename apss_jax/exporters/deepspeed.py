"""DeepSpeed: `ds_config.json`, a module that sets the stage bounds, the launch line, a hostfile.

Target: DeepSpeed 0.19 (runtime/config.py, runtime/pipe/module.py, runtime/pipe/topology.py). Its
PipelineModule takes no bounds, so that the module overrides where it computes them.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any, Final

from apss_jax.exporters.export import Export, Exporter, commented, header
from apss_jax.exporters.hosts import hostfile, hostfile_notes, torchrun
from apss_jax.legality.framework_limits import DEEPSPEED
from apss_jax.legality.launch import Launch

VERSION: Final = "0.19"
CONFIG: Final = "ds_config.json"
MODULE: Final = "planned_pipeline.py"


def ds_config(launch: Launch) -> dict[str, Any]:
    """Returns the configuration; the three batch sizes multiply as DeepSpeed checks them."""
    plan = launch.plan
    config: dict[str, Any] = {
        "train_batch_size": plan.global_batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro_batches,
        "zero_optimization": _sharding(launch),
        "bf16": {"enabled": plan.precision in ("bf16", "fp8")},
        "fp16": {"enabled": plan.precision == "fp16"},
    }
    if plan.pipeline_parallel == 1 and plan.tensor_parallel > 1:
        config["tensor_parallel"] = {"autotp_size": plan.tensor_parallel}
    return config


def _sharding(launch: Launch) -> dict[str, int]:
    """Returns the ZeRO stage, and the size of a partition group where there are several."""
    fields: dict[str, int] = {"stage": launch.plan.zero_stage}
    if launch.plan.zero_shards and launch.replicas > 1:
        fields["mics_shard_size"] = launch.plan.zero_shards
    return fields


def bounds(launch: Launch) -> list[int]:
    """Returns where each stage begins in the list embedding, layers, head; and where it ends."""
    units = [c.num_layers + c.embedding + c.head for c in launch.chunks]
    return [0, *accumulate(units)]


def _module(launch: Launch) -> str:
    plan = launch.plan
    notes = [
        "The list of layers must be: one embedding, the model's layers, one head (final norm in "
        "it); a list of another length is refused, so that no layer is lost.",
        "With tensor ranks the layers must be Megatron's, which divide themselves.",
    ]
    if plan.recompute == "full":
        notes.append("Every layer is recomputed: activation_checkpoint_interval is 1.")
    interval = int(plan.recompute == "full")
    return f'''{commented(header("DeepSpeed", VERSION, launch, notes))}
"""A pipeline with the stage bounds of the plan."""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

PARTS = {bounds(launch)!r}
NUM_LAYERS = {launch.num_layers}
TOPOLOGY = dict(
    num_pp={plan.pipeline_parallel}, num_mp={plan.tensor_parallel}, num_dp={plan.data_parallel}
)


class PlannedPipeline(PipelineModule):
    """A PipelineModule whose stages begin where the plan says."""

    def __init__(self, layers, **settings):
        settings.setdefault("topology", PipeModelDataParallelTopology(**TOPOLOGY))
        settings.setdefault("activation_checkpoint_interval", {interval})
        super().__init__(layers, **settings)

    def _partition_layers(self, method="planned"):
        if len(self._layer_specs) != PARTS[-1]:
            raise ValueError(
                f"the plan is for {{PARTS[-1]}} entries (embedding, {{NUM_LAYERS}} layers, head), "
                f"and the list has {{len(self._layer_specs)}}"
            )
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = list(PARTS)
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
'''


def write_deepspeed(launch: Launch) -> Export:
    """Returns the configuration, the module where there is a pipeline, and how to start."""
    files = {CONFIG: json.dumps(ds_config(launch), indent=1) + "\n"}
    if launch.plan.pipeline_parallel > 1:
        files[MODULE] = _module(launch)
    files["launch.sh"] = _launch(launch)
    if launch.agents:
        files["hostfile"] = hostfile(launch)
    return Export(files, CONFIG)


def _launch(launch: Launch) -> str:
    notes = [*hostfile_notes(launch), f"Your script reads {CONFIG} and builds PlannedPipeline."]
    if launch.replicas > 1:
        notes.append("Build the model within deepspeed.zero.MiCS_Init, which groups the ranks.")
    if launch.plan.precision == "fp8":
        notes.append("The plan's products are in FP8: your layers must bring them themselves.")
    counts = {len(agent.gpus) for agent in launch.agents}
    plain = launch.one_agent_per_host and len(counts) == 1 and _in_order(launch)
    script = '"${1:?give your training script}"'
    if plain:
        line = f'deepspeed --hostfile hostfile {script} --deepspeed_config {CONFIG} "${{@:2}}"\n'
    else:
        notes.append("The deepspeed launcher gives every host the same GPUs: torchrun instead.")
        line = torchrun(launch, [script, f'--deepspeed_config {CONFIG} "${{@:2}}"'])
    top = commented(header("DeepSpeed", VERSION, launch, notes))
    return f"#!/usr/bin/env bash\n{top}\nset -euo pipefail\n{line}"


def _in_order(launch: Launch) -> bool:
    return all(agent.gpus == tuple(range(len(agent.gpus))) for agent in launch.agents)


EXPORTER: Final = Exporter(
    "deepspeed",
    "DeepSpeed",
    VERSION,
    "deepspeed",
    DEEPSPEED,
    write_deepspeed,
    (CONFIG, MODULE, "launch.sh", "hostfile"),
)
