"""Exports fed to the frameworks' own checks: Megatron core, torchtitan and DeepSpeed."""

import collections
import json
import logging
import re
import warnings
from collections.abc import Iterator
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from planned import launch_of_split, small_model
from real_frameworks import function_of, loaded
from test_megatron_export import launches

from apss_jax.exporters.bridge import overrides
from apss_jax.exporters.deepspeed import ds_config, write_deepspeed
from apss_jax.exporters.torchtitan import parallelism, training
from apss_jax.importers.pipeline_layout import layout_stages
from apss_jax.importers.prediction import with_predictions
from apss_jax.legality.launch import Launch

CORE = "megatron.core"
MEGATRON = (
    f"{CORE}.enums",
    f"{CORE}.transformer.enums",
    f"{CORE}.transformer.pipeline_parallel_layer_layout",
    f"{CORE}.model_parallel_config",
    f"{CORE}.transformer.transformer_config",
)
BESIDE = (
    "torch", "torch.nn", "torch.nn.functional", f"{CORE}.parallel_state", f"{CORE}.utils",
    f"{CORE}.quantization.quant_config", f"{CORE}.fusions.fused_bias_geglu",
)  # fmt: skip


@pytest.fixture(scope="module")
def megatron() -> Iterator[ModuleType]:
    """Yields Megatron core's module of TransformerConfig."""
    with loaded(*MEGATRON, standing_in=BESIDE) as module:
        yield module


def core_config(megatron: ModuleType, launch: Launch, **changes: Any) -> Any:
    """Returns the TransformerConfig of an export, which raises where it would not start."""
    fields = {
        name.removeprefix("model."): value
        for name, value in overrides(launch).items()
        if name.startswith("model.") and name != "model.seq_length"
    }
    heads = {"num_attention_heads": 8, "num_query_groups": 4, "hidden_size": 64}
    layers = {"num_layers": launch.num_layers, "pipeline_dtype": "bf16"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Megatron's own, about options that nobody asked for
        return megatron.TransformerConfig(**{**fields, **heads, **layers, **changes})


@given(launches())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_megatron_core_takes_every_export(megatron: ModuleType, launch: Launch) -> None:
    """Its configuration accepts the plan, and puts the plan's layers on every virtual stage."""
    config = core_config(megatron, launch)
    layout = config.pipeline_model_parallel_layout
    if layout is None:
        assert launch.is_even
        return
    stages, chunks = launch.plan.pipeline_parallel, launch.plan.virtual_stages
    kind = next(t for t in type(layout.flatten_layout[0]) if t.name == "decoder")
    found = [layout.layout[s][c].count(kind) for c in range(chunks) for s in range(stages)]
    assert tuple(found) == launch.split


@pytest.mark.parametrize("split", [[4, 4], [3, 5]])
def test_megatron_core_takes_prediction(megatron: ModuleType, split: list[int]) -> None:
    """Two layers of multi-token prediction, by the layout or on the last stage of themselves."""
    model = with_predictions(small_model(8), 2)
    config = core_config(megatron, launch_of_split(split, model=model, stack="megatron"))
    assert config.mtp_num_layers == 2
    if split == [3, 5]:
        named = [kind.name for kind in config.pipeline_model_parallel_layout.layout[1][0]]
        assert named == [*["decoder"] * 5, "mtp", "mtp", "loss"]


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline_model_parallel_layout": "Et*3|t*4L"},
        {"num_layers_in_first_pipeline_stage": 3},
        {"cpu_offloading": True, "cpu_offloading_num_layers": 1},
    ],
)
def test_megatron_core_would_refuse(megatron: ModuleType, changes: dict[str, Any]) -> None:
    """The check above can fail: a lost layer and options that exclude each other are refused."""
    with pytest.raises((AssertionError, ValueError)):
        core_config(megatron, launch_of_split([3, 5]), **changes)


@pytest.mark.parametrize(
    "text", ["Et*3|(tt|)*29,m|L", "E|(t|)*3,m|m||L", "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"]
)
def test_layout_strings_are_read_alike(megatron: ModuleType, text: str) -> None:
    """Published strings mean the same stages to Megatron and to us."""
    names = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
    theirs = megatron.PipelineParallelLayerLayout.parse_str_to_list(text)
    ours = [[names[symbol] for symbol in stage] for stage in layout_stages(text)]
    assert [[kind.name for kind in stage] for stage in theirs] == ours


@pytest.mark.parametrize("chunks", [1, 2])
def test_torchtitan_takes_the_fields(chunks: int) -> None:
    """Its dataclasses know every field, and its mesh has as many ranks as the plan."""
    launch = launch_of_split([2] * (2 * chunks), chunks=chunks, tensor_parallel=2, zero_stage=3)
    with loaded("torchtitan.config.configs", standing_in=("torch",)) as configs:
        degrees = configs.ParallelismConfig(**parallelism(launch))
        batches = configs.TrainingConfig(**training(launch))
        with pytest.raises(TypeError):
            configs.ParallelismConfig(**parallelism(launch), pipeline_parts=2)
    check = function_of("torchtitan.distributed.parallel_dims", "_validate")
    mesh = SimpleNamespace(
        dp_replicate=degrees.data_parallel_replicate_degree,
        dp_shard=degrees.data_parallel_shard_degree,
        cp=degrees.context_parallel_degree,
        tp=degrees.tensor_parallel_degree,
        pp=degrees.pipeline_parallel_degree,
        ep=degrees.expert_parallel_degree,
        world_size=launch.world,
    )
    check(mesh)
    assert batches.local_batch_size % degrees.pipeline_parallel_microbatch_size == 0


def test_deepspeed_reads_the_hostfile() -> None:
    """Its launcher finds the hosts and their GPUs."""
    launch = launch_of_split([4, 4], data_parallel=8)
    lines = write_deepspeed(launch).files["hostfile"].splitlines()
    parse = function_of(
        "deepspeed.launcher.runner", "_parse_hostfile",
        collections=collections, re=re, logger=logging.getLogger("deepspeed"),
    )  # fmt: skip
    assert parse(lines) == {"node0": 8, "node1": 8}


def test_deepspeed_accepts_the_batch_sizes() -> None:
    """Its own assertion holds for the plan's replicas, and not for another number."""
    launch = launch_of_split([4, 4], data_parallel=3)
    config = json.loads(json.dumps(ds_config(launch)))
    check = function_of("deepspeed.runtime.config", "_batch_assertion")
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    sizes = {name: config[name] for name in names}
    check(SimpleNamespace(**sizes, world_size=3))
    with pytest.raises(AssertionError):
        check(SimpleNamespace(**sizes, world_size=4))


def test_deepspeed_numbers_ranks_as_the_plan() -> None:
    """Its topology gives each rank the stage, the replica and the tensor rank of the plan."""
    launch = launch_of_split([3, 5], tensor_parallel=2, data_parallel=2, model=small_model(8))
    with loaded("deepspeed.runtime.pipe.topology", standing_in=("deepspeed.comm",)) as module:
        topology = module.PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
        for stage, data, tensor in product(range(2), repeat=3):
            rank = topology.get_rank(pipe=stage, data=data, model=tensor)
            own = launch.plan.stages[stage].devices
            assert launch.ranks[rank] == own[2 * data + tensor]
