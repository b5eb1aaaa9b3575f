"""Class D of the reported cases: pipelines whose stages differ."""

from collections.abc import Sequence
from functools import cache
from statistics import median

import pytest
from builders import tiny_cluster, tiny_model, tiny_stack

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.importers.megatron_arguments import read_megatron_arguments
from apss_jax.importers.megatron_run import split_of_arguments
from apss_jax.importers.pipeline_layout import layout_problems, layout_stages
from apss_jax.legality.megatron_arguments import argument_violations
from apss_jax.planning.estimate import estimate_plan
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.layout import Layout
from apss_jax.schema.model import LayerRun, Model, Tower
from apss_jax.schema.plan import Plan
from apss_jax.schema.weights import count

PP = "--pipeline-model-parallel-size"
MTP = "--mtp-num-layers"
LAYOUT = "--pipeline-model-parallel-layout"


def planned(
    model: Model, stages: int, split: Sequence[int] | None = None, tensor: int = 4, batch: int = 32
) -> Plan:
    """Returns the estimate of a pipeline of A100s, cut by the exact solver or as given."""
    nodes = max(stages * tensor // 8, 1)
    layout = Layout(tensor, stages, 1, sequence_parallel=tensor > 1)
    return estimate_plan(
        model,
        load_cluster(f"{nodes}x8xA100-SXM4-80GB"),
        layout,
        global_batch=batch,
        seq_len=2048,
        stack="megatron",
        split=split,
    ).plan


def layers_of(plan: Plan) -> list[int]:
    """Returns the layers of each stage."""
    return [stage.chunks[0].num_layers for stage in plan.stages]


def work_s(plan: Plan) -> list[float]:
    """Returns the time of each stage for a micro-batch."""
    return [(stage.forward_s or 0) + (stage.backward_s or 0) for stage in plan.stages]


def weights_of(plan: Plan) -> list[float]:
    """Returns the bytes of weights on a device of each stage."""
    return [stage.memory_bytes.weights for stage in plan.stages if stage.memory_bytes]


def step_s(plan: Plan) -> float:
    """Returns the step time."""
    assert plan.cost is not None
    return plan.cost.step_time_s


def refused(line: str) -> set[str]:
    """Returns the rules that Megatron's arguments break."""
    return {each.rule for each in argument_violations(read_megatron_arguments(line))}


def changed(model: Model, **values: object) -> Model:
    """Returns another model: a copy would keep what was counted of this one."""
    kept = {name: getattr(model, name) for name in Model.model_fields}
    return Model(**{**kept, **values})


@cache
def bloom(layers: int) -> Model:
    """Returns BLOOM-176B with another number of layers."""
    model = load_model("bloom-176b")
    return changed(model, layers=(LayerRun(repeat=layers, layer=model.layers[0].layer),))


def test_a_large_vocabulary_counts_as_a_layer() -> None:
    """D02: the last stage gives up a layer for the head; 78 layers leave it one stage of 1."""
    plan = planned(bloom(70), 12)
    assert layers_of(plan)[-1] < max(layers_of(plan)) == 6
    balanced = work_s(planned(bloom(70), 12, [5, *[6] * 10, 5]))
    assert max(balanced) < 1.1 * median(balanced)
    unbalanced = work_s(planned(bloom(78), 12, [*[7] * 11, 1]))
    assert unbalanced[-1] < 0.6 * unbalanced[0]


def test_the_heaviest_stage_is_told() -> None:
    """D03: weights of stages of 1, 2, 2 and 3 layers, ends where they stand, none averaged."""
    model = tiny_model(8)
    plan = estimate_plan(
        model, tiny_cluster(4), Layout(1, 4, 1), global_batch=16, seq_len=64,
        stack=tiny_stack(), split=[1, 2, 2, 3],
    ).plan  # fmt: skip
    layer = count(model.layer_sequence[0].weights(8))
    ends = [count(model.embedding_weights), 0, 0, count(model.head_weights)]
    parameters = [n * layer + end for n, end in zip((1, 2, 2, 3), ends, strict=True)]
    sizes = weights_of(plan)
    assert sizes == [2 * number for number in parameters]
    assert max(sizes) > sum(sizes) / 4


def test_the_last_count_alone() -> None:
    """D04: 13 on the last of 4 stages leaves 48 of 61 for three; 14 leave 47, which is refused."""
    line = f"--num-layers 61 {PP} 4 --decoder-last-pipeline-num-layers"
    assert split_of_arguments(read_megatron_arguments(f"{line} 13")) == (16, 16, 16, 13)
    assert refused(f"{line} 14") == {"middle_layers"}


@pytest.mark.parametrize(
    ("stages", "layout"),
    [(16, "Et*4|(t*4|)*14,tmL"), (8, "Et*4|(t*4|)*14,tmL"), (4, "Et*4|(t*4|)*14,tmL")],
)
def test_layouts_of_deepseek_v3(stages: int, layout: str) -> None:
    """D06: 16 pieces on 16, 8 and 4 ranks hold 61 layers, the MTP layer and the loss."""
    given = read_megatron_arguments(f"--num-layers 61 {MTP} 1 {PP} {stages} {LAYOUT} '{layout}'")
    assert argument_violations(given) == ()
    assert given.virtual_stages == 16 // stages
    split = split_of_arguments(given)
    assert split == (*[4] * 15, 1)
    assert sum(split) == load_model("deepseek-v3").num_layers


def test_prediction_and_head_weigh_as_layers_do() -> None:
    """D06: 4 layers on 15 of 16 stages and 1 beside prediction and head is nearly the best cut."""
    layout = Layout(2, 16, 32, expert_parallel=32, sequence_parallel=True, recompute="full")
    asked = {"global_batch": 2048, "seq_len": 4096, "stack": "megatron"}
    cluster = load_cluster("128x8xH100-SXM5-80GB")
    best, published, without = (
        step_s(estimate_plan("deepseek-v3", cluster, layout, split=split, **asked).plan)
        for split in (None, [4] * 15 + [1], [4] * 13 + [3] * 3)
    )
    assert best <= published < 1.02 * best
    assert without > 1.1 * best


def test_the_output_layer_weighs_what_it_costs() -> None:
    """D07: of a vocabulary of 256,000 the last stage has fewer layers, and stages are closer."""
    base = load_model("llama-2-13b")
    assert base.embedding is not None
    wide = changed(
        base,
        embedding=base.embedding.model_copy(update={"vocab_size": 256_000}),
        head=base.head.model_copy(update={"tied": True}),
    )
    solved, even = planned(wide, 4, tensor=2), planned(wide, 4, [10] * 4, tensor=2)
    assert layers_of(solved)[-1] < 10
    assert max(work_s(solved)) - min(work_s(solved)) < max(work_s(even)) - min(work_s(even))


def test_the_head_is_part_of_its_stage() -> None:
    """D08: of two equal stages of a model with 262k rows the one with the head takes longer."""
    text = changed(load_model("gemma3-12b"), towers=())
    times = work_s(planned(text, 2, [24, 24], tensor=1))
    assert times[1] > 1.1 * times[0]


def test_a_loss_in_several_stages() -> None:
    """D10: 16 pieces on 8 ranks are two chunks of each; several L are another branch's grammar."""
    text = "E|(t|)*10m|m|m|LL|LL"
    stages = layout_stages(text)
    assert (len(stages), len(stages) // 8) == (16, 2)
    assert layout_problems(stages, num_layers=10, pipeline_parallel=8, num_mtp=3)
    assert refused(f"--num-layers 10 {MTP} 3 {PP} 8 {LAYOUT} '{text}'") == {"layout"}


def test_a_vision_tower_is_work_of_the_first_stage() -> None:
    """D11: with a tower before it the first stage gets fewer layers, and that is faster."""
    base = load_model("llama-3.2-1b")
    layers = (LayerRun(repeat=12, layer=base.layers[0].layer),)
    tower = Tower(
        name="vision", hidden_size=base.hidden_size or 1, tokens_per_sequence=2048, layers=layers
    )
    seeing = changed(base, towers=(tower,))
    uneven, even = planned(seeing, 2, tensor=1), planned(seeing, 2, [8, 8], tensor=1)
    assert layers_of(uneven)[0] < 8
    assert step_s(uneven) < step_s(even)


def test_dense_and_routed_layers_alternate() -> None:
    """D12: stages of 6 layers hold three routed ones each, stages of 3 hold one or two."""
    model = load_model("llama-4-maverick")
    routed = [isinstance(layer.feed_forward, MoeMlp) for layer in model.layer_sequence]
    assert sum(routed) == 24
    six = [sum(routed[i : i + 6]) for i in range(0, 48, 6)]
    three = [sum(routed[i : i + 3]) for i in range(0, 48, 3)]
    assert set(six) == {3} and set(three) == {1, 2}
    even, odd = (
        weights_of(planned(model, stages, [48 // stages] * stages, 8))[1:-1] for stages in (8, 16)
    )
    assert max(even) == min(even)
    assert max(odd) > 1.7 * min(odd)


def test_seven_layers_on_two_stages() -> None:
    """D14: an even split is refused; a layout or a count for the first stage gives 3 and 4."""
    line = f"--num-layers 7 {PP} 2"
    assert refused(line) == {"even_layers"}
    for more in (f"{LAYOUT} 'Ettt|ttttL'", "--decoder-first-pipeline-num-layers 3"):
        assert refused(f"{line} {more}") == set()
        assert split_of_arguments(read_megatron_arguments(f"{line} {more}")) == (3, 4)
