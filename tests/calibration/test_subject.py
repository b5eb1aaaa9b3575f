"""What a line of a runs table means: model, cluster, stack and layout, blanks filled."""

import numpy as np
import pytest
from run_tables import run_of

from apss_jax.calibration.gaps import UnusableRunError
from apss_jax.calibration.splits import offsets_by_cost, offsets_by_module, offsets_of_boundaries
from apss_jax.calibration.subject import SkippedRun, Subject, subject_of
from apss_jax.importers.frameworks import framework_named
from apss_jax.importers.library import library_names
from apss_jax.importers.networks import stated_link


def _subject(**changes: str | None) -> Subject:
    found = subject_of(run_of(**changes))
    assert isinstance(found, Subject), found
    return found


def _reason(**changes: str | None) -> str:
    found = subject_of(run_of(**changes))
    assert isinstance(found, SkippedRun)
    return found.reason


def test_a_known_model_is_the_library_s() -> None:
    """The name finds the model where the sizes agree: 8.03 billion parameters."""
    assert _subject().model.num_parameters == 8_030_261_248


def test_a_library_model_takes_the_run_s_depth_and_vocabulary() -> None:
    """A proxy of fewer layers and a padded vocabulary keep the layer of the named model."""
    model = _subject(num_layers="4", vocab="128512").model
    assert model.num_layers == 4
    assert model.embedding is not None
    assert model.embedding.vocab_size == 128512


def test_a_name_with_another_shape_is_not_the_library_s() -> None:
    """Sizes go before the name."""
    model = _subject(hidden="2048", ffn_hidden="8192", num_heads="16").model
    assert model.hidden_size == 2048
    assert model.name == "Llama 3.1 8B"


def test_a_head_size_that_is_not_hidden_over_heads_comes_from_the_library() -> None:
    """Qwen3-30B has 32 heads of 128 on a width of 2,048."""
    run = {"num_layers": "48", "hidden": "2048", "num_heads": "32", "ffn_hidden": "768"}
    model = _subject(model_name="Qwen3_30B_a3B", num_experts="128", topk="8", **run).model
    assert model.layers[0].layer.mixer.head_dim == 128  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "ffn_hidden", "gated"),
    [
        ("Llama-1B (1.34B)", "8192", True),  # four times the width, and yet gated
        ("GPT h2048", "8192", False),
        ("", "8192", False),
        ("", "5632", True),
        ("Nemotron-4", "8192", False),
    ],
)
def test_gates_follow_the_family_then_the_width(name: str, ffn_hidden: str, gated: bool) -> None:
    """The name decides; without one, only four times the width means two matrices."""
    sizes = {"hidden": "2048", "num_layers": "16", "num_heads": "32", "vocab": "131072"}
    model = _subject(model_name=name, ffn_hidden=ffn_hidden, **sizes).model
    assert model.layers[0].layer.feed_forward.gated is gated  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "ffn", "parameters"),
    [
        ("Llama-1B (1.34B)", "16", "2048", "8192", 1.34e9),  # tied: 2 x 131,072 x 2,048 less
        ("Llama-8B (8.86B)", "32", "4096", "14336", 8.86e9),
    ],
)
def test_a_size_in_a_name_tells_tied_ends(
    name: str, layers: str, hidden: str, ffn: str, parameters: float
) -> None:
    """Of tied and untied ends the one whose count the name states is taken."""
    sizes = {"num_layers": layers, "hidden": hidden, "ffn_hidden": ffn}
    model = _subject(model_name=name, num_heads="32", num_kv_heads="32", vocab="131072", **sizes)
    assert model.model.num_parameters == pytest.approx(parameters, rel=0.005)


def test_blank_degrees_are_derived_and_blank_switches_assumed() -> None:
    """16 GPUs over tp 2 x pp 2 leave dp 4, and 128 sequences 32 micro-batches."""
    subject = _subject()
    assert subject.layout.data_parallel == 16 // (2 * 2)
    assert subject.num_micro_batches == 128 // 4
    assert subject.layout.sequence_parallel  # NeMo's habit
    assert {"zero_stage", "recompute", "sequence_parallel"} <= set(subject.assumed)
    assert "dp" not in subject.assumed


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"zero_shards": "4"}, 4),
        ({"note": "micro_num=4; zero1 group=4 (-1 = all DP ranks)"}, 4),
        ({"note": "zero1 group=-1 (-1 = all DP ranks)"}, None),
        ({"note": 'col "on 16x H100 GPUs (FSDP=8 GBS=128)"', "zero_stage": "3"}, 8),
        ({"note": "HSDP", "zero_stage": "3"}, 8),  # within a node
        ({"note": "FSDP=4", "zero_shards": "2"}, 2),  # a column goes before a note
        ({"note": "FSDP=4", "zero_stage": "0"}, None),  # nothing is sharded
        ({"zero_shards": "16"}, None),  # all of them
        ({"zero_shards": "5"}, None),  # no even groups
    ],
)
def test_a_run_may_say_over_how_many_ranks_it_shards(
    changes: dict[str, str], expected: int | None
) -> None:
    """By its column, or by the words of its note."""
    all_data = {"tp": "1", "pp": "1", "dp": "16", "zero_stage": "1"}
    assert _subject(**{**all_data, **changes}).layout.zero_shards == expected


def test_all_data_parallel_needs_no_other_degree() -> None:
    """A data degree of all GPUs says that nothing else is split."""
    layout = _subject(tp=None, pp=None, dp="16").layout
    assert (layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel) == (1, 1, 16)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_model": None}, "no GPU"),
        ({"gpu_model": "RTX-2080"}, "GPU not in the library"),
        ({"num_gpus": None}, "no number of GPUs"),
        ({"num_layers": None}, "no number of layers"),
        ({"hidden": None}, "no hidden size"),
        ({"tp": None, "pp": None}, "no layout: of tp, pp and dp at most one may be blank"),
        ({"tp": "3"}, "no layout: the degrees do not divide the GPUs"),
        ({"pp": "8", "tp": "1", "num_layers": "4", "vpp": "2"}, "more stages than layers"),
        ({"gpu_model": "A100", "precision": "fp8"}, "no fp8 rate known for the GPU"),
        ({"stage_boundaries": "0 14 31"}, "stage boundaries do not fit the number of layers"),
        ({"stage_boundaries": "0 32"}, "stage boundaries do not fit the number of stages"),
    ],
)
def test_a_run_that_cannot_be_used_says_why(changes: dict[str, str | None], reason: str) -> None:
    """Reasons hold no figures of the run, so that equal ones can be counted."""
    assert _reason(**changes) == reason


@pytest.mark.parametrize(("gpu", "expected"), [("A100", "tf32"), ("V100", "fp32")])
def test_full_precision_is_tf32_where_the_device_has_it(gpu: str, expected: str) -> None:
    """That is an assumption, and told; older devices have plain FP32 alone."""
    found = _subject(gpu_model=gpu, precision="fp32")
    assert found.precision == expected
    assert ("precision" in found.assumed) == (expected == "tf32")


def test_a_framework_decides_the_stack_and_the_run_its_kernels() -> None:
    """The first pattern that matches wins; an unknown name is generic."""
    assert _subject(framework="Megatron-DeepSpeed (bigscience)").stack.name == "bigscience"
    assert _subject(framework="my own").stack.name == "generic"
    stated = _subject(flash_attention="0", fused_norm="0").stack
    assert (stated.name, stated.flash_attention, stated.fused_norm) == ("nemo", False, False)
    assert _subject(flash_attention="1").stack.flash_attention_version == 1
    assert _subject().stack.flash_attention_version == 3


@pytest.mark.parametrize(
    ("release", "is_fused"),
    [("25.11", False), ("26.04.01", False), ("26.06", True), ("27.02", True)],
)
def test_releases_of_megatron_bridge_fuse_experts_from_26_06_on(
    release: str, is_fused: bool
) -> None:
    """Earlier releases, and NeMo before them, launch the parts of a layer of experts one by one."""
    stack = _subject(framework=f"Megatron-Bridge {release}").stack
    assert (stack.name, stack.fused_experts) == ("nemo", is_fused)


def test_every_framework_has_a_shipped_stack() -> None:
    """Names that a pattern leads to exist."""
    for text in ("nanotron", "MaxText", "FSDP", "torchtitan", "InternEvo", "Megatron-Core", "alpa"):
        assert framework_named(text).stack in library_names("stacks")


@pytest.mark.parametrize(
    ("text", "gb_per_s", "shared"),
    [
        ("NVLink; 800 Gb/s per node inter-node", 100 / 8, False),
        ("NVLink3; 8x HDR200 per node (Selene)", 25, False),
        ("NVLink4 + NDR400/GPU (DGX-H100)", 50, False),
        ("NVLink; 4x100Gb RoCE per node", 50 / 8, False),
        ("InfiniBand 8x50 GB/s per node", 50, False),
        ("1600 Gbps node-node (RoCE)", 25, False),
        ("InfiniBand 100 Gb/s per node (1 NIC)", 12.5, True),
    ],
)
def test_a_stated_rate_is_read(text: str, gb_per_s: float, shared: bool) -> None:
    """Rates per GPU count as they are, those of a node are divided by its 8 GPUs."""
    link = stated_link(text, 8)
    assert link is not None
    assert link.bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert link.shared_by_node is shared


@pytest.mark.parametrize("text", ["", "NVLink intra-node", "NVLink5 (DGX-B200)", "0 Gb/s per GPU"])
def test_a_text_without_a_rate_states_none(text: str) -> None:
    """Generations of links are no rates."""
    assert stated_link(text, 8) is None


def test_a_rack_is_one_domain() -> None:
    """18 nodes of 4 GB200 share their fast link."""
    run = {"gpu_model": "GB200-NVL72", "num_gpus": "72", "gpus_per_node": "4", "tp": "2", "pp": "1"}
    assert _subject(**run, interconnect=None).cluster.nodes[0].nodes_per_domain == 18


def test_boundaries_may_count_the_modules_of_deepspeed() -> None:
    """Two modules before 24 layers and four after them: 30 in all."""
    offsets = offsets_of_boundaries((0, 14, 30), 24, 2)
    assert offsets.tolist() == [0, 13, 26]  # embedding + 12 layers, 12 layers + head
    assert offsets_of_boundaries((0, 12, 24), 24, 2).tolist() == [0, 13, 26]


def test_boundaries_that_go_back_are_refused() -> None:
    """Stages follow each other."""
    with pytest.raises(UnusableRunError):
        offsets_of_boundaries((0, 14, 12, 24), 24, 3)


def test_a_split_by_cost_closes_a_stage_with_its_share() -> None:
    """A stage ends with the block that reaches its share; the head weighs as two layers here."""
    sizes = {"hidden": "64", "num_heads": "1", "num_kv_heads": "1", "ffn_hidden": "64"}
    # One layer: 4 x 64 x 64 + 3 x 64 x 64 = 7 x 64 x 64; the head 14 x 64 x 64; together 28.
    model = _subject(model_name="", num_layers="2", vocab=str(14 * 64), **sizes).model
    # Two stages of 14: the second layer reaches 14, so the head stands alone.
    assert np.diff(offsets_by_cost(model, 2)).tolist() == [3, 1]
    # Three of 9.3: the first layer does not reach its share, but leaves one block for each stage.
    assert np.diff(offsets_by_cost(model, 3)).tolist() == [2, 1, 1]


def test_a_split_by_cost_counts_each_stage_from_its_own_first_block() -> None:
    """Six layers and a head of one: 7 / 3 for a stage, so three layers, three layers, the head."""
    sizes = {"hidden": "64", "num_heads": "1", "num_kv_heads": "1", "ffn_hidden": "64"}
    model = _subject(model_name="", num_layers="6", vocab=str(7 * 64), **sizes).model
    assert np.diff(offsets_by_cost(model, 3)).tolist() == [4, 3, 1]


def test_a_split_by_module_counts_the_ends() -> None:
    """Of eight layers and three ends three stages get 4, 4 and 3, four get 3, 3, 3 and 2."""
    model = _subject(model_name="", num_layers="8").model
    assert offsets_by_module(model, 3).tolist() == [0, 4, 8, 10]  # the last layer, norm and head
    assert offsets_by_module(model, 4).tolist() == [0, 3, 6, 9, 10]  # norm and head alone
    assert offsets_by_module(model, 11).tolist() == [*range(10), 9, 10]  # the norm is no unit


def test_a_framework_that_counts_modules_splits_so() -> None:
    """Aleph Alpha's four stages of 60 layers have 15, 16, 16 and 13 of them beside the ends."""
    offsets = _subject(framework="AA-Scaling", num_layers="60", pp="4", tp="1").offsets
    assert offsets is not None
    assert np.diff(offsets).tolist() == [16, 16, 16, 14]


def test_a_blank_batch_is_that_of_the_run_s_own_figures() -> None:
    """16 devices that do 1,000 tokens a second each, 8 s a step: 31.25 sequences of 4,096."""
    found = _subject(
        global_batch=None, step_time_s="8", tokens_per_s_per_gpu="1000", seq_len="4096"
    )
    assert found.global_batch == 31
    assert "global_batch" not in found.assumed


@pytest.mark.parametrize(("pp", "tp", "batch"), [("1", "2", 8), ("2", "2", 4 * 8 * 2)])
def test_a_blank_batch_keeps_the_pipeline_filled(pp: str, tp: str, batch: int) -> None:
    """One micro-batch without a pipeline, eight for each stage with one."""
    subject = _subject(global_batch=None, pp=pp, tp=tp, framework="torchtitan")
    assert subject.global_batch == batch
    assert "global_batch" in subject.assumed


@pytest.mark.parametrize(("framework", "batch"), [("NeMo 24.07", 8 * 8), ("torchtitan", 8)])
def test_frameworks_that_accumulate_have_as_many_without_a_pipeline(
    framework: str, batch: int
) -> None:
    """Eight micro-batches for each of 8 data ranks under NeMo, one under torchtitan."""
    subject = _subject(global_batch=None, pp="1", tp="2", framework=framework)
    assert subject.global_batch == batch


@pytest.mark.parametrize(
    ("gpu", "devices", "expected"),
    [("GB200", 256, 16), ("GB200", 72, 18), ("GB200", 64, 18), ("H100", 256, 1)],
)
def test_a_run_on_several_racks_takes_equally_many_nodes_of_each(
    gpu: str, devices: int, expected: int
) -> None:
    """64 nodes of 4 GB200 are four times 16 of the 18 in a rack; a run in one rack has it whole."""
    degrees = {"num_gpus": str(devices), "dp": str(devices), "tp": "1", "pp": "1"}
    found = _subject(gpu_model=gpu, gpus_per_node="4", **degrees)
    assert found.cluster.nodes[0].nodes_per_domain == expected
