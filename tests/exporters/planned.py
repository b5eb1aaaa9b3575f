"""Plans of a few lines, and the parts of frameworks that an export is fed to."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from apss_jax.importers.clusters import load_cluster
from apss_jax.legality.launch import Launch
from apss_jax.planning.estimate import stages_of
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.layers import Attention, DenseMlp, Layer
from apss_jax.schema.model import Embedding, LayerRun, Model
from apss_jax.schema.plan import Plan

H100 = "H100-SXM5-80GB"
A100 = "A100-SXM4-80GB"
MIXED = "1x8xA100-SXM4-80GB+1x8xH100-SXM5-80GB"


def small_model(layers: int = 8, layer: Layer | None = None, **changes: Any) -> Model:
    """Returns a GPT of hidden size 64."""
    attention = Attention(num_heads=8, num_kv_heads=4, head_dim=8)
    usual = Layer(mixer=attention, feed_forward=DenseMlp(intermediate_size=256))
    fields = {
        "name": "small",
        "hidden_size": 64,
        "embedding": Embedding(vocab_size=1000),
        "layers": (LayerRun(repeat=layers, layer=layer or usual),),
    }
    return Model(**{**fields, **changes})


def plan_of(split: Sequence[int], *, chunks: int = 1, **fields: Any) -> Plan:
    """Returns a plan with these layers on its virtual stages, on devices in their own order."""
    stages = len(split) // chunks
    given = {
        "tensor_parallel": 1,
        "data_parallel": 2,
        "micro_batch": 2,
        "num_micro_batches": 8,
        "seq_len": 512,
        "precision": "bf16",
        "model": "small",
        **fields,
    }
    given["global_batch"] = (
        given["data_parallel"] * given["micro_batch"] * given["num_micro_batches"]
    )
    bare = Plan(
        pipeline_parallel=stages,
        virtual_stages=chunks,
        schedule=given.pop("schedule", "interleaved_1f1b" if chunks > 1 else "1f1b"),
        **given,
    )
    ranks = bare.tensor_parallel * bare.data_parallel * bare.context_parallel
    placed = tuple(
        stage.model_copy(
            update={"devices": tuple(range(i * ranks, (i + 1) * ranks)), "device_type": H100}
        )
        for i, stage in enumerate(stages_of(bare, split))
    )
    return bare.model_copy(update={"stages": placed})


def launch_of_split(
    split: Sequence[int], *, model: Model | None = None, cluster: str | None = None, **fields: Any
) -> Launch:
    """Returns such a plan with a model of as many layers, on nodes of eight GPUs."""
    plan = plan_of(split, **fields)
    devices = sum(len(stage.devices) for stage in plan.stages)
    profile = load_cluster(cluster or f"{-(-devices // 8)}x8x{H100}")
    return Launch(plan, model or small_model(sum(split)), profile)


def on_devices(launch: Launch, devices: Sequence[Sequence[int]]) -> Launch:
    """Returns the launch with other devices for its stages."""
    placed = tuple(
        stage.model_copy(update={"devices": tuple(own)})
        for stage, own in zip(launch.plan.stages, devices, strict=True)
    )
    return Launch(launch.plan.model_copy(update={"stages": placed}), launch.model, launch.cluster)


def typed(launch: Launch, cluster: ClusterProfile, types: Sequence[str]) -> Launch:
    """Returns the launch on another cluster, its stages on these device types."""
    stages = tuple(
        stage.model_copy(update={"device_type": name})
        for stage, name in zip(launch.plan.stages, types, strict=True)
    )
    return Launch(launch.plan.model_copy(update={"stages": stages}), launch.model, cluster)


def mixed(split: list[int], **fields: Any) -> Launch:
    """Returns a plan whose first stage is on A100s and whose others are on H100s."""
    launch = launch_of_split(split, data_parallel=8, **fields)
    types = [A100, *[H100] * (len(launch.plan.stages) - 1)]
    return typed(launch, load_cluster(MIXED), types)


class Recorder(SimpleNamespace):
    """An object whose attributes come into being when they are asked for."""

    def __getattr__(self, name: str) -> "Recorder":
        """Returns the attribute, made now."""
        made = Recorder()
        setattr(self, name, made)
        return made


@contextmanager
def modules(**contents: dict[str, Any]) -> Iterator[None]:
    """Makes modules importable for a while; `__` in a name stands for its dots."""
    names = {name.replace("__", "."): body for name, body in contents.items()}
    for name in list(names):
        parents = name.split(".")[:-1]
        for i in range(len(parents)):
            names.setdefault(".".join(parents[: i + 1]), {})
    before = {name: sys.modules.get(name) for name in names}
    for name, body in names.items():
        module = ModuleType(name)
        module.__dict__.update(body)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def executed(source: str, **given: Any) -> dict[str, Any]:
    """Returns the names that a module defines."""
    names = dict(given)
    exec(compile(source, "export.py", "exec"), names)
    return names
