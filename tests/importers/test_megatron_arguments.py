"""Launch scripts of Megatron, read without running anything."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.importers.megatron_arguments import read_megatron_arguments
from apss_jax.importers.megatron_model import model_of_arguments, padded_vocab
from apss_jax.importers.megatron_run import (
    nodes_of_arguments,
    run_of_arguments,
    split_of_arguments,
)
from apss_jax.importers.pipeline_layout import (
    LayoutTextError,
    layout_problems,
    layout_stages,
    layout_text,
)
from apss_jax.importers.shell_words import flags_in
from apss_jax.schema.errors import InputError

PP = "--pipeline-model-parallel-size"
LAYOUT = "--pipeline-model-parallel-layout"
SCRIPT = """#!/bin/bash
# trains an 8B model; don't forget: --num-layers 99 in a comment means nothing
GPUS=8
LAYERS=${LAYERS:-32}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS
    --nnodes 2   # both nodes
)
GPT="
  --num-layers $LAYERS --hidden-size 4096 \\
  --ffn-hidden-size=14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear
  --normalization RMSNorm --untie-embeddings-and-output-weights
  --position-embedding-type rope --vocab-size 128256 --seq-length 8192
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $GPT "${EXTRA[@]}" \\
  --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2 \\
  --num-virtual-stages-per-pipeline-rank 4 --micro-batch-size 1 --global-batch-size 256 \\
  --use-distributed-optimizer --recompute-granularity selective --bf16
mkdir -p done
"""


def _script(folder: Path, text: str = SCRIPT) -> str:
    path = folder / "train.sh"
    path.write_text(text)
    return str(path)


def _split(line: str) -> tuple[int, ...] | None:
    return split_of_arguments(read_megatron_arguments(line))


def test_a_script_is_read(tmp_path: Path) -> None:
    """Variables, arrays, defaults, comments and continued lines mean what they mean in a shell."""
    arguments = read_megatron_arguments(_script(tmp_path))
    assert arguments.size("--num-layers", 0) == 32
    assert arguments.flags["--bf16"] == ()
    assert nodes_of_arguments(arguments) == (2, 8)


def test_the_model_of_a_script_has_the_known_size(tmp_path: Path) -> None:
    """Llama 3.1 8B has 8,030,261,248 parameters, and 128256 rows need no padding on two ranks."""
    model = model_of_arguments(read_megatron_arguments(_script(tmp_path)))
    assert model.num_parameters == 8_030_261_248


def test_the_run_of_a_script(tmp_path: Path) -> None:
    """Degrees are the flags', and the data degree is what they leave of the devices."""
    run = run_of_arguments(read_megatron_arguments(_script(tmp_path)), 16)
    layout = run.layout
    assert (layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel) == (2, 2, 4)
    assert (layout.virtual_stages, layout.zero_stage, layout.recompute) == (4, 1, "selective")
    assert (run.global_batch, run.seq_len, run.precision) == (256, 8192, "bf16")
    assert run.split == (4,) * 8


def test_a_file_of_flags_alone(tmp_path: Path) -> None:
    """One word on each line is a launch, too."""
    text = "--num-layers\n12\n--bf16\n--micro-batch-size\n2\n"
    arguments = read_megatron_arguments(_script(tmp_path, text))
    assert arguments.size("--micro-batch-size", 0) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--num-layers $N", "the text does not set"),
        ("--num-layers twelve", "whole number"),
        ("--num-layers 0", "whole number"),
        ("--num-layers", "needs a value"),
        ("--bf16", "holds no argument of Megatron"),
        ("--num-layers 'x", "cannot be read as a shell line"),
    ],
)
def test_a_wrong_line(line: str, said: str) -> None:
    """One message that names the flag, the rule and the remedy."""
    with pytest.raises(InputError) as caught:
        read_megatron_arguments(line).needed("--num-layers")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "split"),
    [
        (f"--num-layers 61 {PP} 4", None),
        (
            f"--num-layers 8 {PP} 2 --num-virtual-stages-per-pipeline-rank 2",
            (2, 2, 2, 2),
        ),
        (
            f"--num-layers 10 {PP} 3 --decoder-first-pipeline-num-layers 2",
            (2, 4, 4),
        ),
        (
            "--num-layers 14 --pipeline-model-parallel-size 2 "
            "--num-layers-per-virtual-pipeline-stage 4 --account-for-embedding-in-pipeline-split "
            "--account-for-loss-in-pipeline-split",
            (3, 4, 4, 3),
        ),
        ("--num-layers 3 --pipeline-model-parallel-layout 'Et|t|tL'", (1, 1, 1)),
        ("--num-layers 5", (5,)),
    ],
)
def test_layers_of_each_virtual_stage(flags: str, split: tuple[int, ...] | None) -> None:
    """Even, by ends that are given, by ends that count as layers, by layout; else none."""
    assert _split(flags) == split


def test_patterns_of_expert_layers() -> None:
    """`([0]*3+[1]*4)` has three dense layers and four with experts."""
    line = (
        "--num-layers 7 --hidden-size 64 --num-attention-heads 4 --num-experts 8 "
        "--moe-layer-freq '([0]*3+[1]*4)'"
    )
    runs = model_of_arguments(read_megatron_arguments(line)).layers
    assert [
        (run.repeat, run.layer.feed_forward.kind) for run in runs if run.layer.feed_forward
    ] == [
        (3, "mlp"),
        (4, "moe"),
    ]


def test_a_vocabulary_is_padded_for_every_rank() -> None:
    """151,669 rows on four ranks become 152,064, the next multiple of 128 x 4."""
    assert padded_vocab(151_669, 128, 4) == 152_064
    assert padded_vocab(151_669, 1, 4) == 151_672


def test_the_published_layout_string() -> None:
    """61 layers and one MTP layer on 16 ranks with two chunks, as Megatron documents it."""
    stages = layout_stages("Et*3|(tt|)*29,m|L")
    assert [len(stages), stages[0], stages[14], stages[30], stages[31]] == [
        32,
        "Ettt",
        "tt",
        "m",
        "L",
    ]
    assert layout_problems(stages, num_layers=61, pipeline_parallel=16, num_mtp=1) == []


def test_prediction_of_a_launch() -> None:
    """Its layers are the model's, and where they are not on the last stage that is said."""
    line = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --mtp-num-layers 1"
    last, apart = (
        run_of_arguments(read_megatron_arguments(f"{line} {PP} 4 {LAYOUT} '{text}'"), 4)
        for text in ("Et|t|t|tmL", "Et*2|t*2|m|L")
    )
    assert last.model and last.model.num_mtp_layers == 1
    assert not any("counted on the last stage" in note for note in last.notes)
    assert any("counted on the last stage" in note for note in apart.notes)


@pytest.mark.parametrize("text", ["E((t|)*2)*2L", "Etx|L", "E(t|L", "(t)*999999L", "E)t("])
def test_a_layout_that_megatron_would_not_read(text: str) -> None:
    """Nesting, unknown symbols, open groups and absurd repeats are errors."""
    with pytest.raises(LayoutTextError):
        layout_stages(text)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_a_layout_survives_a_round_trip(split: list[int]) -> None:
    """Whatever the layers of the stages, the string says the same stages."""
    stages = ["t" * count for count in split]
    stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
    assert layout_stages(layout_text(stages)) == stages


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the reader fail in another way."""
    try:
        flags_in(text)
    except InputError as error:
        assert error.mistakes
