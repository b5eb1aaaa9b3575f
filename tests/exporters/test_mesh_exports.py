"""Exports for torchtitan, MaxText and JAX, read back and compared with the plan."""

from typing import Any

import pytest
import yaml
from planned import Recorder, executed, launch_of_split, modules, small_model

from apss_jax.exporters.jax import write_jax
from apss_jax.exporters.maxtext import axes, write_maxtext
from apss_jax.exporters.torchtitan import write_torchtitan
from apss_jax.importers.load import load_model
from apss_jax.legality.launch import Launch


def _titan(launch: Launch) -> Recorder:
    with modules(
        torchtitan__config={"ParallelismConfig": dict},
        torchtitan__distributed__activation_checkpoint={
            "FullAC": Recorder(Config=lambda: "full"),
            "SelectiveAC": Recorder(Config=lambda: "selective"),
        },
        my_recipes={"base_recipe": Recorder},
    ):
        return executed(write_torchtitan(launch).text)["planned"]()


def test_torchtitan_parts_hold_every_module_once() -> None:
    """Embedding, layers in order, norm and head; one part for each virtual stage."""
    config = _titan(launch_of_split([1, 2, 2, 3], chunks=2, zero_stage=3))
    parts = config.parallelism["module_fqns_per_model_part"]
    flat = [name for part in parts for name in part]
    assert flat == ["tok_embeddings", *(f"layers.{i}" for i in range(8)), "norm", "lm_head"]
    assert [len(part) for part in parts] == [2, 2, 2, 5]
    assert config.parallelism["pipeline_parallel_schedule"] == "Interleaved1F1B"


def test_torchtitan_batches_come_out() -> None:
    """A pipeline splits the local batch; without one it is accumulated."""
    piped = _titan(launch_of_split([4, 4], zero_stage=3))
    assert piped.training.local_batch_size == 2 * 8
    assert piped.parallelism["pipeline_parallel_microbatch_size"] == 2
    plain = _titan(launch_of_split([8], zero_stage=3, recompute="full"))
    assert plain.training.local_batch_size == 2
    assert plain.training.global_batch_size == 32
    assert plain.activation_checkpoint == "full"


@pytest.mark.parametrize(
    ("stage", "replicate", "shard", "reshard"),
    [(0, 2, 1, "never"), (2, 1, 2, "never"), (3, 1, 2, "always")],
)
def test_torchtitan_shards(stage: int, replicate: int, shard: int, reshard: str) -> None:
    """ZeRO 0 replicates; 2 and 3 shard, 3 gathers again in the backward pass."""
    fields = _titan(launch_of_split([8], zero_stage=stage)).parallelism
    assert fields["data_parallel_replicate_degree"] == replicate
    assert fields["data_parallel_shard_degree"] == shard
    assert fields["fsdp_reshard_after_forward"] == reshard


def test_torchtitan_replicates_groups_that_shard() -> None:
    """Of sixteen data x context ranks four shard: two data ones with two context ones each."""
    launch = launch_of_split([8], zero_stage=3, data_parallel=8, context_parallel=2, zero_shards=4)
    fields = _titan(launch).parallelism
    assert fields["data_parallel_replicate_degree"] == 4
    assert fields["data_parallel_shard_degree"] == 2


def test_torchtitan_knows_its_recipes() -> None:
    """A model that the release has is taken from it, and no other of the same name."""
    model = load_model("llama-3.1-8b")
    launch = launch_of_split([16, 16], zero_stage=3, model=model)
    named = launch.plan.model_copy(update={"model": "llama-3.1-8b"})
    text = write_torchtitan(Launch(named, model, launch.cluster)).text
    assert "import llama3_8b" in text
    other = Launch(named, small_model(32), launch.cluster)
    assert "base_recipe" in write_torchtitan(other).text


def test_maxtext_replicates_over_hosts_what_it_shards_within() -> None:
    """Sixteen ranks on two hosts: eight shard inside a host, and hosts hold the same."""
    launch = launch_of_split(
        [8], zero_stage=3, data_parallel=16, zero_shards=8, cluster="2x8xH100-SXM5-80GB"
    )
    found = axes(launch)
    assert (found["ici_fsdp_parallelism"], found["dcn_fsdp_parallelism"]) == (8, 1)
    assert (found["ici_data_parallelism"], found["dcn_data_parallelism"]) == (1, 2)


def _maxtext(launch: Launch) -> dict[str, Any]:
    config = yaml.safe_load(write_maxtext(launch).text)
    degrees = [value for key, value in config.items() if key.endswith("_parallelism")]
    product = 1
    for degree in degrees:
        product *= degree
    assert product == launch.world
    return config


def test_maxtext_layers_multiply() -> None:
    """Layers = stages x layers per stage x repeats."""
    config = _maxtext(launch_of_split([2, 2, 2, 2], chunks=2))
    stages = config["ici_pipeline_parallelism"] * config["dcn_pipeline_parallelism"]
    per_stage, repeats = config["num_layers_per_pipeline_stage"], config["num_pipeline_repeats"]
    assert stages * per_stage * repeats == config["base_num_decoder_layers"] == 8


@pytest.mark.parametrize("split", [[8], [4, 4]])
def test_maxtext_batches_multiply(split: list[int]) -> None:
    """Per device x devices x accumulation = global batch; micro-batches as in the plan."""
    launch = launch_of_split(split, tensor_parallel=2, context_parallel=2)
    config = _maxtext(launch)
    each = config["per_device_batch_size"] * launch.world
    assert each * config["gradient_accumulation_steps"] == launch.plan.global_batch
    if len(split) > 1:
        assert each / config["num_pipeline_microbatches"] == 2 * launch.plan.data_parallel


def test_maxtext_fills_hosts_with_tensor_ranks_first() -> None:
    """16 GPUs in two hosts: tensor and half of the data ranks inside, the pipeline across."""
    launch = launch_of_split([4, 4], tensor_parallel=4, data_parallel=2, zero_stage=1)
    found = {key: value for key, value in axes(launch).items() if value > 1}
    assert found == {
        "ici_tensor_parallelism": 4,
        "ici_data_parallelism": 2,
        "dcn_pipeline_parallelism": 2,
    }


@pytest.mark.parametrize(("stage", "axis"), [(0, "data"), (1, "data"), (2, "fsdp"), (3, "fsdp")])
def test_maxtext_shards_over_an_axis(stage: int, axis: str) -> None:
    """ZeRO 1 is a switch on the data axis, 2 and 3 are the fsdp axis."""
    config = _maxtext(launch_of_split([8], zero_stage=stage))
    assert config[f"ici_{axis}_parallelism"] == 2
    assert config["shard_optimizer_over_data"] is (stage == 1)


@pytest.mark.parametrize(("tensor", "rows"), [(2, None), (5, 128_260)])
def test_maxtext_pads_the_vocabulary_of_its_own_models(tensor: int, rows: int | None) -> None:
    """128,256 rows are a multiple of 2; five ranks need four rows more, over the model's file."""
    model = load_model("llama-3.1-8b")
    launch = launch_of_split([32], model=model, tensor_parallel=tensor, zero_stage=0)
    named = launch.plan.model_copy(update={"model": "llama-3.1-8b"})
    config = _maxtext(Launch(named, model, launch.cluster))
    assert config["model_name"] == "llama3.1-8b"
    assert (config.get("vocab_size"), config.get("override_model_config")) == (
        (rows, True) if rows else (None, None)
    )


def test_jax_module_holds_every_layer() -> None:
    """Stages, shape and devices are those of the plan; roles have axes of the mesh."""
    launch = launch_of_split([4, 4], tensor_parallel=2, zero_stage=3, sequence_parallel=True)
    names = executed(write_jax(launch).text)
    assert names["SHAPE"] == (2, 2, 1, 2)
    assert names["DEVICES"] == list(range(8))
    assert sum(count for stage in names["STAGES"] for _, count in stage) == names["NUM_LAYERS"]
    axes_used = {a for axes in names["SPECS"].values() for axis in axes for a in _flat(axis)}
    assert axes_used <= set(names["AXES"])


def _flat(axis: Any) -> tuple[str, ...]:
    return axis if isinstance(axis, tuple) else (axis,) if axis else ()


def test_jax_mesh_needs_the_devices_of_the_plan() -> None:
    """Fewer devices than the plan uses are refused with both numbers."""
    names = executed(write_jax(launch_of_split([4, 4], tensor_parallel=2)).text)
    with pytest.raises(ValueError, match="needs device 7, and there are 1"):
        names["make_mesh"](["one"])


def test_jax_mesh_on_devices() -> None:
    """On the devices at hand the mesh and each role's sharding come out."""
    import jax

    names = executed(write_jax(launch_of_split([8], data_parallel=1)).text)
    mesh = names["make_mesh"]()
    assert dict(mesh.shape) == {"stage": 1, "data": 1, "context": 1, "tensor": 1}
    assert names["sharding"](mesh, "embedding").spec == jax.sharding.PartitionSpec("tensor", None)
