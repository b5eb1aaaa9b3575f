"""Exports for Megatron-Bridge, DeepSpeed and FlagScale, read back and compared with the plan."""

import json
from typing import Any

import pytest
import yaml
from planned import (
    A100,
    H100,
    Recorder,
    executed,
    launch_of_split,
    mixed,
    modules,
    on_devices,
)

from apss_jax.exporters.bridge import write_bridge
from apss_jax.exporters.deepspeed import write_deepspeed
from apss_jax.exporters.flagscale import write_flagscale
from apss_jax.importers.pipeline_layout import layout_stages
from apss_jax.legality.launch import Launch


def _bridged(launch: Launch) -> Recorder:
    config = Recorder()
    executed(write_bridge(launch).text)["apply_plan"](config)
    return config


def test_bridge_changes_the_configuration() -> None:
    """Degrees, layout and batch stand in the fields of ConfigContainer."""
    config = _bridged(launch_of_split([3, 5], tensor_parallel=2, sequence_parallel=True))
    model = config.model
    assert (model.tensor_model_parallel_size, model.pipeline_model_parallel_size) == (2, 2)
    assert layout_stages(model.pipeline_model_parallel_layout) == ["Ettt", "tttttL"]
    assert model.virtual_pipeline_model_parallel_size is None
    assert (config.train.micro_batch_size, config.train.global_batch_size) == (2, 32)
    assert config.mixed_precision == "bf16_mixed"


def test_bridge_of_an_even_plan_resets_the_layout() -> None:
    """A recipe's own layout would be another plan: it is set to none."""
    config = _bridged(launch_of_split([2, 2, 2, 2], chunks=2))
    assert config.model.pipeline_model_parallel_layout is None
    assert config.model.virtual_pipeline_model_parallel_size == 2


class FakePipelineModule:
    """What PipelineModule does with bounds, without torch."""

    def __init__(self, layers: list[str], topology: Any, **settings: Any) -> None:
        """Cuts the list as the subclass says."""
        self._layer_specs, self._topo, self.global_rank = layers, topology, 0
        self._partition_layers()

    def _set_bounds(self, start: int, stop: int) -> None:
        self.bounds = (start, stop)


class FakeTopology:
    """Ranks as DeepSpeed numbers them: pipe, data, model, the last one fastest."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        """Remembers the degrees."""
        self.degrees = (num_pp, num_dp, num_mp)

    def get_coord(self, rank: int) -> Recorder:
        """Returns the place of a rank."""
        return Recorder(pipe=rank // (self.degrees[1] * self.degrees[2]))


def _pipeline(launch: Launch) -> dict[str, Any]:
    with modules(
        deepspeed__pipe={"PipelineModule": FakePipelineModule},
        deepspeed__runtime__pipe__topology={"PipeModelDataParallelTopology": FakeTopology},
    ):
        return executed(write_deepspeed(launch).files["planned_pipeline.py"])


def test_deepspeed_stages_hold_what_the_plan_says() -> None:
    """Embedding and 3 layers, then 5 layers and the head: the list has 10 entries."""
    names = _pipeline(launch_of_split([3, 5], tensor_parallel=2))
    module = names["PlannedPipeline"](["e", *"tttttttt", "h"])
    assert module.parts == [0, 4, 10]
    assert module.bounds == (0, 4)
    assert module._topo.degrees == (2, 2, 2)


def test_deepspeed_refuses_another_list_of_layers() -> None:
    """A list of another length would lose layers without a word."""
    names = _pipeline(launch_of_split([3, 5]))
    with pytest.raises(ValueError, match="10 entries"):
        names["PlannedPipeline"](["e", "t", "h"])


def test_deepspeed_batch_sizes_multiply() -> None:
    """train_batch = micro x accumulation x data ranks, DeepSpeed's own check."""
    launch = launch_of_split([3, 5])
    config = json.loads(write_deepspeed(launch).text)
    micro, steps = (
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
    )
    assert micro * steps * launch.plan.data_parallel == config["train_batch_size"]
    assert config["zero_optimization"]["stage"] == 1


def test_deepspeed_groups_ranks_by_mics() -> None:
    """Four of eight ranks shard; the script says what must build the model."""
    files = write_deepspeed(
        launch_of_split([8], zero_stage=3, data_parallel=8, zero_shards=4)
    ).files
    sharding = json.loads(files["ds_config.json"])["zero_optimization"]
    assert sharding == {"stage": 3, "mics_shard_size": 4}
    assert "MiCS_Init" in files["launch.sh"]


def test_deepspeed_on_uneven_nodes_is_started_by_torchrun() -> None:
    """Its launcher gives every host the same GPUs, so that 4 + 1 GPUs need another one."""
    launch = launch_of_split([8], data_parallel=5, cluster=f"1x4x{H100}+1x1x{H100}")
    script = write_deepspeed(launch).files["launch.sh"]
    assert "COUNTS=(4 1)" in script
    assert "torchrun" in script and "deepspeed --hostfile" not in script


@pytest.mark.parametrize(("first", "launcher"), [(0, "deepspeed --hostfile"), (4, "torchrun")])
def test_deepspeed_is_started_on_the_plans_devices(first: int, launcher: str) -> None:
    """Its launcher takes the first GPUs of every host: others need torchrun."""
    launch = launch_of_split([8], data_parallel=4, cluster=f"1x8x{H100}")
    moved = on_devices(launch, [range(first, first + 4)])
    lines = write_deepspeed(moved).files["launch.sh"].splitlines()
    assert any(line.startswith(launcher) for line in lines)


def test_flagscale_meshes_of_a_mixed_plan() -> None:
    """One mesh for each device type, layers of every stage, types in their order."""
    launch = mixed([2, 3], recompute="full")
    system = yaml.safe_load(write_flagscale(launch).text)["system"]
    hetero = system["hetero"]
    assert hetero["hetero_process_meshes"] == [1, 1, 1, 8, 1, 1, 1, 1, 8, 1]
    assert hetero["hetero_pipeline_layer_split"] == [2, 3]
    assert hetero["hetero_device_types"] == [A100, H100]
    stages = sum(hetero["hetero_process_meshes"][4::5])
    assert stages == len(hetero["hetero_pipeline_layer_split"]) == 2
    assert system["recompute_granularity"] == "full"
    assert "pipeline_model_parallel_layout" not in system


def test_flagscale_of_one_type_takes_the_layout_string() -> None:
    """Without several types there are no meshes."""
    config = yaml.safe_load(write_flagscale(launch_of_split([3, 5])).text)
    assert "hetero" not in config["system"]
    assert config["system"]["pipeline_model_parallel_layout"] == "Et*3|t*5L"
    assert config["model"]["num_layers"] == 8
    assert config["model"]["global_batch_size"] == 32
    assert config["data"]["tokenizer"]["vocab_size"] == 1000


def test_flagscale_hostfile_and_experiment() -> None:
    """Hosts carry their type, and only static rendezvous runs several of them."""
    files = write_flagscale(mixed([2, 3])).files
    assert files["hostfile"] == f"node0 slots=8 type={A100}\nnode1 slots=8 type={H100}\n"
    config = yaml.safe_load(files["config.yaml"])
    experiment = config["experiment"]
    assert experiment["runner"] == {"hostfile": "./hostfile", "rdzv_backend": "static"}
    assert experiment["task"] == {
        "type": "train",
        "backend": "megatron",
        "entrypoint": "flagscale/train/megatron/train_gpt.py",
    }
    assert (config["action"], config["defaults"]) == ("run", [{"train": "plan"}, "_self_"])


@pytest.mark.parametrize(("stage", "connections"), [(1, 1), (2, 32)])
def test_flagscale_sets_the_connections_of_cuda(stage: int, connections: int) -> None:
    """One of them orders transfers; Megatron-FSDP does not start with one."""
    config = write_flagscale(launch_of_split([8], zero_stage=stage)).files["config.yaml"]
    variables = yaml.safe_load(config)["experiment"]["envs"]
    assert variables == {"CUDA_DEVICE_MAX_CONNECTIONS": connections}
