"""FlagScale: the training YAML, an experiment YAML around it, and a hostfile with device types.

Target: FlagScale of August 2026 (examples/llama3/conf/train/8b_hetero.yaml). A pipeline over
several device types becomes process meshes, one for each run of stages on one type.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, Final

from apss_jax.exporters.export import Export, Exporter, commented, header, yaml_text
from apss_jax.exporters.hosts import hostfile, hostfile_notes
from apss_jax.exporters.megatron import batch_flags, parallel_flags, shape_flags
from apss_jax.exporters.megatron_model import Flag, model_flags
from apss_jax.importers import megatron_arguments as names
from apss_jax.legality.framework_limits import FLAGSCALE
from apss_jax.legality.launch import Launch

VERSION: Final = "of August 2026"
TRAIN: Final = "train/plan.yaml"


def as_fields(flags: list[Flag]) -> dict[str, Any]:
    """Returns flags as fields: `--num-layers 32` is `num_layers: 32`, one without a value true."""
    return {name[2:].replace("-", "_"): _value(words) for name, *words in flags}


def _value(words: list[str]) -> Any:
    if not words:
        return True
    return int(words[0]) if words[0].isdigit() else words[0]


def meshes(launch: Launch) -> list[list[int]]:
    """Returns one mesh for each run of stages on one device type: tp, cp, ep, dp, pp."""
    plan = launch.plan
    degrees = [
        plan.tensor_parallel,
        plan.context_parallel,
        plan.expert_parallel,
        plan.data_parallel,
    ]
    runs = groupby(stage.device_type for stage in plan.stages)
    return [[*degrees, len(list(run))] for _, run in runs]


def mesh_types(launch: Launch) -> list[str]:
    """Returns the device type of each mesh."""
    runs = groupby(stage.device_type or "" for stage in launch.plan.stages)
    return [name for name, _ in runs]


def _hetero(launch: Launch) -> dict[str, Any]:
    types = mesh_types(launch)
    return {
        "enable_hetero": True,
        "hetero_use_cpu_communication": False,
        "hetero_pipeline_layer_split": list(launch.split),
        "hetero_process_meshes": [degree for mesh in meshes(launch) for degree in mesh],
        "hetero_device_types": types,
        "hetero_current_device_type": types[0],
        "standalone_embedding_stage": False,
    }


def train_config(launch: Launch) -> tuple[dict[str, Any], list[str]]:
    """Returns the training configuration, and what to know about it."""
    described, notes = model_flags(launch.model, launch.plan)
    mixed = len(launch.device_types) > 1 and launch.plan.pipeline_parallel > 1
    left_out = {names.LAYOUT} if mixed else set()
    system = as_fields([f for f in parallel_flags(launch) if f[0] not in left_out])
    precision = [flag for flag in batch_flags(launch) if "batch" not in flag[0]]
    system["precision"] = as_fields(precision)
    if mixed:
        # Of several meshes only this format is read back (FlagOpen/FlagScale#319).
        system["checkpoint"] = {"ckpt_format": "torch"}
        system["hetero"] = _hetero(launch)
    batch = [flag for flag in batch_flags(launch) if "batch" in flag[0]]
    model = as_fields([*shape_flags(launch), *described, *batch])
    data = {key: model.pop(key) for key in ("vocab_size",) if key in model}
    config = {"system": system, "model": model}
    return ({**config, "data": {"tokenizer": data}} if data else config), notes


def experiment_config(launch: Launch) -> dict[str, Any]:
    """Returns the experiment around the training configuration."""
    return {
        "experiment": {
            "exp_name": "plan",
            "exp_dir": "./outputs",
            "task": {
                "type": "train",
                "backend": "megatron",
                "entrypoint": "flagscale/train/megatron/train_gpt.py",
            },
            "runner": {"hostfile": "./hostfile", "rdzv_backend": "static"},
            # Megatron-FSDP does not start with one, and needs no other number.
            "envs": {"CUDA_DEVICE_MAX_CONNECTIONS": 1 if launch.plan.zero_stage < 2 else 32},
        },
        "action": "run",
    }


def write_flagscale(launch: Launch) -> Export:
    """Returns both YAML files and the hostfile."""
    config, notes = train_config(launch)
    said = [*hostfile_notes(launch), *notes]
    top = commented(header("FlagScale", VERSION, launch, said, trains_prediction=True))
    defaults = "defaults:\n  - train: plan\n  - _self_\n\n"
    files = {
        TRAIN: f"{top}\n{yaml_text(config)}",
        "config.yaml": f"{commented([_LAUNCH])}\n{defaults}{yaml_text(experiment_config(launch))}",
    }
    if launch.agents:
        files["hostfile"] = hostfile(launch, typed=True)
    return Export(files, TRAIN)


_LAUNCH = "Start with: python run.py --config-path . --config-name config"
EXPORTER: Final = Exporter(
    "flagscale",
    "FlagScale",
    VERSION,
    "megatron",
    FLAGSCALE,
    write_flagscale,
    (TRAIN, "config.yaml", "hostfile"),
)
