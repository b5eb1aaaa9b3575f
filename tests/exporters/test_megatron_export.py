"""Exports for Megatron-LM, read back by the importer and by a shell."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import H100, launch_of_split, on_devices, small_model

from apss_jax.exporters.export import Export
from apss_jax.exporters.megatron import write_megatron
from apss_jax.importers.load import load_model
from apss_jax.importers.megatron_arguments import MegatronArguments, read_megatron_arguments
from apss_jax.importers.megatron_run import run_of_arguments
from apss_jax.importers.prediction import with_predictions
from apss_jax.importers.shell_words import flags_in
from apss_jax.legality.launch import Launch
from apss_jax.legality.megatron_arguments import argument_violations
from apss_jax.legality.plan_check import layout_of

FAKE_TORCHRUN = '#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" "$@"\n'


def read_back(export: Export) -> MegatronArguments:
    """Returns the arguments of the exported script."""
    return MegatronArguments(flags_in(export.text))


def started(export: Export, folder: Path, *words: str, **variables: str) -> str:
    """Returns what the script starts on one host: the GPUs, then torchrun's words."""
    for name, text in {**export.files, "torchrun": FAKE_TORCHRUN}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), *words],
        capture_output=True,
        text=True,
        check=True,
        env={**path, **variables},
    )
    return done.stdout


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    """Draws a plan with any stages, even ones among them."""
    stages, chunks = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    chunks = 1 if stages == 1 else chunks
    pieces = stages * chunks
    even = draw(st.booleans())
    split = (
        [2] * pieces
        if even
        else draw(st.lists(st.integers(0, 5), min_size=pieces, max_size=pieces))
    )
    if sum(split) == 0:
        split[0] = 1
    tensor = draw(st.sampled_from([1, 2, 4]))
    return launch_of_split(
        split,
        chunks=chunks,
        tensor_parallel=tensor,
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        context_parallel=draw(st.sampled_from([1, 2])),
        zero_stage=draw(st.sampled_from([0, 1] if stages > 1 else [0, 1, 2, 3])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        num_micro_batches=stages * draw(st.integers(1, 3)),
    )


@given(launches())
def test_a_script_says_the_plan(launch: Launch) -> None:
    """Degrees, switches, batch and the layers of every virtual stage come back as they were."""
    arguments = read_back(write_megatron(launch))
    run = run_of_arguments(arguments, launch.world)
    assert run.layout == layout_of(launch.plan)
    assert run.split == launch.split
    assert (run.global_batch, run.seq_len) == (launch.plan.global_batch, launch.plan.seq_len)
    assert argument_violations(arguments) == ()


@given(launches())
def test_no_layer_is_lost(launch: Launch) -> None:
    """The layers of the stages add up to --num-layers."""
    arguments = read_back(write_megatron(launch))
    run = run_of_arguments(arguments, launch.world)
    assert run.split is not None
    assert sum(run.split) == arguments.size("--num-layers", 0) == launch.num_layers


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt2", "mixtral-8x7b", "qwen3-8b", "deepseek-v3"]
)
def test_models_come_back(name: str) -> None:
    """The model that the flags describe has the parameters of the one that was exported."""
    model = load_model(name)
    split = [model.num_layers]
    launch = launch_of_split(split, model=model, data_parallel=8, stack="megatron")
    run = run_of_arguments(read_back(write_megatron(launch)), 8)
    assert run.model is not None
    assert model.embedding is not None and run.model.embedding is not None
    rows = run.model.embedding.vocab_size - model.embedding.vocab_size
    padding = rows * (model.hidden_size or 0) * (1 if model.head.tied else 2)
    assert run.model.num_parameters - padding == model.num_parameters
    assert run.model.num_mtp_parameters == model.num_mtp_parameters


@pytest.mark.parametrize(
    ("stack", "said"),
    [("megatron", None), ("torchtitan", "is not part of the plan"), (None, "is not part")],
)
def test_prediction_is_written_where_the_plan_counts_it(
    stack: str | None, said: str | None
) -> None:
    """A plan made for software without multi-token prediction has none, and the script says so."""
    launch = launch_of_split([3, 5], model=with_predictions(small_model(8), 1), stack=stack)
    export = write_megatron(launch)
    assert read_back(export).has("--mtp-num-layers") == (said is None)
    assert (said or "left out") in export.text or said is None


def test_the_arguments_stand_alone_too(tmp_path: Path) -> None:
    """arguments.txt holds the same flags, one on each line."""
    export = write_megatron(launch_of_split([3, 5]))
    path = tmp_path / "arguments.txt"
    path.write_text(export.files["arguments.txt"])
    alone = read_megatron_arguments(str(path)).flags
    assert alone.items() <= read_back(export).flags.items()


def test_a_shell_starts_what_the_plan_says(tmp_path: Path) -> None:
    """The second host of the order starts its ranks, with what stands after the script's name."""
    launch = launch_of_split([3, 5], data_parallel=8)
    export = write_megatron(launch)
    words = started(export, tmp_path, "--mock-data", NODE_RANK="1")
    assert words.startswith("0,1,2,3,4,5,6,7 --nnodes 2 --node-rank 1 --nproc-per-node 8")
    assert "--pipeline-model-parallel-layout Et*3|t*5L" in words
    assert words.rstrip().endswith("--mock-data")


@pytest.mark.parametrize(
    ("stage", "line"),
    [
        (1, "export CUDA_DEVICE_MAX_CONNECTIONS=1"),
        (3, "unset CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_connections_are_those_that_megatron_starts_with(stage: int, line: str) -> None:
    """One connection orders transfers; with Megatron-FSDP it is an assertion."""
    assert line in write_megatron(launch_of_split([8], zero_stage=stage)).text.splitlines()


def test_instances_of_the_optimizer_are_written_and_read() -> None:
    """Two groups of four of eight data ranks; the importer finds the four again."""
    launch = launch_of_split([8], data_parallel=8, zero_shards=4)
    arguments = write_megatron(launch).files["arguments.txt"]
    assert "--num-distributed-optimizer-instances 2\n" in arguments
    read = run_of_arguments(read_megatron_arguments(arguments), 8)
    assert (read.layout.zero_stage, read.layout.zero_shards) == (1, 4)


def test_hosts_stand_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    """A plan whose first stage is on the second node begins with it."""
    launch = on_devices(launch_of_split([3, 5], data_parallel=8), [range(8, 16), range(8)])
    assert write_megatron(launch).files["hostfile"] == "node1 slots=8\nnode0 slots=8\n"


def test_a_host_that_starts_two_groups(tmp_path: Path) -> None:
    """Ranks of a node that do not follow each other are started apart, each on its own GPUs."""
    launch = on_devices(
        launch_of_split([1, 1, 1], data_parallel=4),
        [(0, 1, 2, 3), (8, 9, 10, 11), (4, 5, 6, 7)],
    )
    export = write_megatron(launch)
    assert export.files["hostfile"] == "node0 slots=4\nnode1 slots=4\nnode0 slots=4\n"
    assert started(export, tmp_path, NODE_RANK="2").startswith("4,5,6,7 --nnodes 3 --node-rank 2")
    assert "several groups of ranks" in export.text


def test_host_names_are_kept(tmp_path: Path) -> None:
    """The names of a hostfile stand in the export, and nothing says that they are made up."""
    (tmp_path / "hosts").write_text("gpu-07 slots=8\ngpu-03 slots=8\n")
    launch = launch_of_split([3, 5], data_parallel=8)
    from apss_jax.importers.clusters import load_cluster

    named = Launch(launch.plan, launch.model, load_cluster(tmp_path / "hosts", gpu=H100))
    export = write_megatron(named)
    assert export.files["hostfile"] == "gpu-07 slots=8\ngpu-03 slots=8\n"
    assert "made up" not in export.text


@pytest.mark.parametrize(
    ("split", "chunks", "said"),
    [
        ([7, 8, 8, 7], 1, "--decoder-first-pipeline-num-layers 7"),
        ([7, 8, 9, 6], 1, "cannot express"),
        ([0, 8, 8, 8], 1, "cannot express"),
        ([2, 2, 3, 1], 2, "cannot express"),
    ],
)
def test_what_older_releases_take(split: list[int], chunks: int, said: str) -> None:
    """Only first and last counts were there before the layout string."""
    text = write_megatron(launch_of_split(split, chunks=chunks)).text
    assert said in text


def test_even_plans_need_no_layout_string() -> None:
    """Older releases read them as they are."""
    arguments = read_back(write_megatron(launch_of_split([2, 2, 2, 2], chunks=2)))
    assert not arguments.has("--pipeline-model-parallel-layout")
    assert arguments.text("--num-virtual-stages-per-pipeline-rank") == "2"


def test_the_sizes_of_a_padded_vocabulary_are_said() -> None:
    """1000 rows on two ranks become 1024."""
    assert "from 1000" not in write_megatron(launch_of_split([8], tensor_parallel=2)).text
    assert "of 1000 to 1024 rows" in write_megatron(launch_of_split([8], tensor_parallel=2)).text
