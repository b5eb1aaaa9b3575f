"""The first plan of many searches in every format: every figure as planned, or a rule's name."""

from itertools import product
from math import prod
from typing import Any

import pytest
import yaml
from planned import Recorder, executed, modules

from apss_jax.exporters.export import REFUSED
from apss_jax.exporters.formats import FORMATS, export_files, launch_of
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.importers.megatron_arguments import MegatronArguments
from apss_jax.importers.megatron_run import run_of_arguments
from apss_jax.importers.pipeline_layout import layout_stages
from apss_jax.importers.shell_words import flags_in
from apss_jax.legality.launch import Launch
from apss_jax.legality.megatron_arguments import argument_violations
from apss_jax.legality.plan_check import layout_of
from apss_jax.planning.search import search_plans

MODELS = (
    "gpt2", "gpt2-xl", "bert-large-uncased", "bloom-7b1", "deepseek-moe-16b", "deepseek-v2-lite",
    "deepseek-v3", "gemma-2b", "gemma-2-9b", "gemma3-4b", "glm-4.5-air", "gpt-oss-20b",
    "gpt3-175b", "llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b",
    "llama-4-scout", "mistral-7b-v0.1", "mixtral-8x7b", "nemotron-h-8b", "opt-13b",
    "qwen2.5-7b", "qwen3-30b-a3b", "qwen3-4b",
)  # fmt: skip
CLUSTERS = (
    "1x8xH100-SXM5-80GB",
    "4x8xA100-SXM4-80GB",
    "1x8xH100-SXM5-80GB+1x8xA100-SXM4-80GB",
    "1x4xA100-SXM4-80GB+1x2xV100-SXM2-32GB",
    "gb200-nvl72",
    "mixed-h100-a100-l40s",
)
BATCHES = (24, 128, 512)
FEW = [
    ("llama-3.1-8b", CLUSTERS[2], 128),
    ("qwen3-30b-a3b", CLUSTERS[1], 128),
    ("gpt2", CLUSTERS[3], 24),
]


def check_megatron(files: dict[str, str], launch: Launch) -> None:
    """The script says the layout and every virtual stage, and Megatron would refuse nothing."""
    arguments = MegatronArguments(flags_in(files["launch.sh"]))
    run = run_of_arguments(arguments, launch.world)
    assert run.layout == layout_of(launch.plan)
    assert (run.global_batch, run.seq_len) == (launch.plan.global_batch, launch.plan.seq_len)
    assert run.split == launch.split
    assert argument_violations(arguments, launch.world) == ()


def check_bridge(files: dict[str, str], launch: Launch) -> None:
    """The layout string has every layer; degrees and batch are the plan's."""
    config = Recorder()
    executed(files["plan_overrides.py"])["apply_plan"](config)
    layout = config.model.pipeline_model_parallel_layout
    stages = layout_stages(layout) if layout else ["t" * n for n in launch.split]
    assert tuple(stage.count("t") for stage in stages) == launch.split
    assert config.train.global_batch_size == launch.plan.global_batch


def check_deepspeed(files: dict[str, str], launch: Launch) -> None:
    """Batch sizes multiply; the bounds hold every layer."""
    config = yaml.safe_load(files["ds_config.json"])
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert micro * steps * launch.plan.data_parallel == config["train_batch_size"]
    if launch.plan.pipeline_parallel > 1:
        source = files["planned_pipeline.py"]
        nothing: dict[str, Any] = {"PipelineModule": object}
        topology = {"PipeModelDataParallelTopology": dict}
        with modules(deepspeed__pipe=nothing, deepspeed__runtime__pipe__topology=topology):
            names = executed(source)
        assert names["PARTS"][-1] == launch.num_layers + 2
        assert sorted(set(names["PARTS"])) == names["PARTS"]


def check_flagscale(files: dict[str, str], launch: Launch) -> None:
    """Meshes or degrees hold every device, layers of the split add up."""
    config = yaml.safe_load(files["train/plan.yaml"])
    hetero = config["system"].get("hetero")
    assert config["model"]["global_batch_size"] == launch.plan.global_batch
    if hetero is None:
        return
    flat = hetero["hetero_process_meshes"]
    meshes = [flat[i : i + 5] for i in range(0, len(flat), 5)]
    # Expert ranks lie inside the data and context ranks.
    assert sum(tp * cp * dp * pp for tp, cp, _, dp, pp in meshes) == launch.world
    assert sum(hetero["hetero_pipeline_layer_split"]) == launch.num_layers
    assert len(hetero["hetero_device_types"]) == len(meshes)


def check_torchtitan(files: dict[str, str], launch: Launch) -> None:
    """Every module stands in one part; degrees multiply to the devices."""
    source = files["planned/config_registry.py"]
    start = source.index("ParallelismConfig(\n") + len("ParallelismConfig(")
    fields = eval(f"dict({source[start : source.index(')', start)]})")
    degrees = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel",
               "context_parallel", "pipeline_parallel")  # fmt: skip
    assert prod(fields[f"{name}_degree"] for name in degrees) == launch.world
    parts = fields.get("module_fqns_per_model_part")
    if parts is not None:
        flat = [name for part in parts for name in part]
        layers = [f"layers.{i}" for i in range(launch.num_layers)]
        assert flat == ["tok_embeddings", *layers, "norm", "lm_head"]


def check_maxtext(files: dict[str, str], launch: Launch) -> None:
    """Axes multiply to the devices, batches to the batch, layers to the model's."""
    config = yaml.safe_load(files["plan.yml"])
    assert prod(v for k, v in config.items() if k.endswith("_parallelism")) == launch.world
    each = config["per_device_batch_size"] * launch.world
    assert round(each * config["gradient_accumulation_steps"]) == launch.plan.global_batch
    if launch.plan.pipeline_parallel > 1:
        stages = launch.plan.pipeline_parallel * config["num_pipeline_repeats"]
        layers = stages * config["num_layers_per_pipeline_stage"]
        assert launch.num_layers in (layers, 2 * layers)


def check_jax(files: dict[str, str], launch: Launch) -> None:
    """Stages hold every layer, the mesh every device."""
    names = executed(files["plan_mesh.py"])
    assert sum(count for stage in names["STAGES"] for _, count in stage) == launch.num_layers
    assert prod(names["SHAPE"]) == len(set(names["DEVICES"])) == launch.world
    samples = names["SHAPE"][1] * names["MICRO_BATCH"] * names["NUM_MICRO_BATCHES"]
    assert samples == names["GLOBAL_BATCH"] == launch.plan.global_batch


CHECKS = {name: globals()[f"check_{name}"] for name in FORMATS}  # an error where one is missing


def export_first_plan(model: str, cluster: str, batch: int) -> dict[str, bool]:
    """Returns which formats take the first plan of a search, each export checked."""
    trained, profile = load_model(model), load_cluster(cluster)
    found = search_plans(trained, profile, global_batch=batch, seq_len=512, top=1)
    if not found.plans:
        return {}
    launch = launch_of(found.plans[0], trained, profile)
    taken = {}
    for name in FORMATS:
        files, refused = export_files(launch, name)
        taken[name] = not refused
        if refused:
            assert all(each.rule and each.reason and each.source for each in refused)
            assert list(files) == [REFUSED]
        else:
            CHECKS[name](files, launch)
    return taken


@pytest.mark.parametrize(("model", "cluster", "batch"), FEW)
def test_a_few_plans_go_everywhere(model: str, cluster: str, batch: int) -> None:
    """Each format takes the plan, every figure in it the plan's, or names the rule."""
    assert set(export_first_plan(model, cluster, batch)) == set(FORMATS)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "cluster"), list(product(MODELS, CLUSTERS)))
def test_every_plan_goes_everywhere(model: str, cluster: str) -> None:
    """25 models on 6 clusters with 3 batches: exported with every layer, or refused by name."""
    for batch in BATCHES:
        assert set(export_first_plan(model, cluster, batch)) in (set(FORMATS), set())


def test_the_grid_is_what_it_says() -> None:
    """25 models, 6 clusters with mixed ones among them, 3 batches."""
    assert (len(set(MODELS)), len(set(CLUSTERS)), len(set(BATCHES))) == (25, 6, 3)
    assert sum(len(load_cluster(name).used_types) > 1 for name in CLUSTERS) >= 3
