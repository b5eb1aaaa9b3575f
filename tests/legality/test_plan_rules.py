"""Rules of whole plans: layers, ends, devices and micro-batches of every stage."""

from typing import Any

import pytest
from legality_problems import cluster_of, dense_layer, facts, model_of, table_model

from apss_jax.legality.facts import Facts
from apss_jax.legality.plan_check import layout_of, plan_violations
from apss_jax.schema.plan import Chunk, Plan, Stage


def stages_of(*counts: int, devices: int = 0) -> tuple[Stage, ...]:
    """Returns one chunk per stage with these many layers, ends included, devices in order."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return tuple(
        Stage(
            chunks=(
                Chunk(
                    first_layer=starts[i],
                    num_layers=count,
                    embedding=i == 0,
                    head=i == len(counts) - 1,
                ),
            ),
            devices=tuple(range(i * devices, (i + 1) * devices)),
        )
        for i, count in enumerate(counts)
    )


def plan_of(stages: tuple[Stage, ...], tensor: int = 1, data: int = 1, **others: Any) -> Plan:
    """Returns a plan of these stages for a global batch of 64."""
    return Plan(
        **{
            "tensor_parallel": tensor,
            "pipeline_parallel": len(stages),
            "data_parallel": data,
            "micro_batch": 1,
            "num_micro_batches": 64 // data,
            "stages": stages,
            **others,
        }
    )


def rules(plan: Plan, problem: Facts | None = None) -> list[str]:
    """Returns the names of the rules that a plan breaks."""
    return [v.rule for v in plan_violations(plan, problem or facts())]


def chunked(*starts_and_counts: tuple[int, int]) -> tuple[Chunk, ...]:
    """Returns chunks without ends."""
    return tuple(Chunk(first_layer=start, num_layers=count) for start, count in starts_and_counts)


def test_uneven_plan_is_legal() -> None:
    """12 layers as 2, 3, 4, 3 on four stages of 4 devices."""
    assert rules(plan_of(stages_of(2, 3, 4, 3, devices=4), tensor=4)) == []


def test_layout_comes_back() -> None:
    """The degrees of the plan are those of its layout."""
    one = layout_of(plan_of(stages_of(6, 6), tensor=4, data=2, zero_stage=2, recompute="full"))
    assert (one.tensor_parallel, one.pipeline_parallel, one.data_parallel) == (4, 2, 2)
    assert (one.zero_stage, one.recompute, one.num_devices) == (2, "full", 16)


@pytest.mark.parametrize("counts", [(3, 3, 3, 2), (3, 3, 3, 4)])
def test_lost_and_invented_layers_are_told(counts: tuple[int, ...]) -> None:
    """A plan that holds 11 or 13 of 12 layers is refused (NVIDIA/Megatron-LM#1304 lost 2 of 30)."""
    (found,) = plan_violations(plan_of(stages_of(*counts)), facts())
    assert found.rule == "layers"
    assert f"hold {sum(counts)} layers" in found.message and "the model has 12" in found.message


def test_gap_in_the_middle_is_told() -> None:
    """Layers 0-5, then 7-12: layer 6 is left out even though the count is right."""
    first, last = stages_of(6, 6)
    moved = Stage(chunks=(last.chunks[0].model_copy(update={"first_layer": 7}),))
    messages = [v.message for v in plan_violations(plan_of((first, moved)), facts())]
    assert messages[0].startswith("stage 1 starts at layer 7 and leaves out layers")


def test_repeated_layer_is_told() -> None:
    """A second stage that starts at layer 5 repeats one."""
    first, last = stages_of(6, 6)
    moved = Stage(chunks=(last.chunks[0].model_copy(update={"first_layer": 5}),))
    assert set(rules(plan_of((first, moved)))) == {"layers"}


def test_virtual_stages_are_passed_round_robin() -> None:
    """Chunk 0 of both stages comes before chunk 1 of the first: layers 0-2, 3-5, 6-8, 9-11."""
    first, second = chunked((0, 3), (6, 3)), chunked((3, 3), (9, 3))
    stages = (
        Stage(chunks=(first[0].model_copy(update={"embedding": True}), first[1])),
        Stage(chunks=(second[0], second[1].model_copy(update={"head": True}))),
    )
    others = {"virtual_stages": 2, "schedule": "interleaved_1f1b"}
    assert rules(plan_of(stages, **others)) == []
    swapped = tuple(Stage(chunks=stage.chunks[::-1]) for stage in stages)
    assert "layers" in rules(plan_of(swapped, **others))


def test_ends_belong_to_the_ends() -> None:
    """An embedding on the last stage, or no head at all, is refused."""
    first, last = stages_of(6, 6)
    no_head = Stage(chunks=(last.chunks[0].model_copy(update={"head": False}),))
    assert rules(plan_of((first, no_head))) == ["layers"]
    both = Stage(chunks=(last.chunks[0].model_copy(update={"embedding": True}),))
    assert rules(plan_of((first, both))) == ["layers"]


def test_stage_may_hold_an_end_alone() -> None:
    """The embedding may stand alone in the first stage."""
    assert rules(plan_of(stages_of(0, 6, 6))) == []


def test_empty_stage_depends_on_the_stack() -> None:
    """A stage without layers or ends is for Megatron's layout string, not for the others."""
    plan = plan_of(stages_of(6, 0, 6))
    assert rules(plan, facts(stack="megatron-lm")) == []
    assert rules(plan, facts(stack="deepspeed")) == ["layers"]


def test_table_has_no_ends() -> None:
    """Six rows on two stages: no chunk may claim an embedding."""
    bare = tuple(Stage(chunks=chunked(one)) for one in ((0, 3), (3, 3)))
    assert rules(plan_of(bare), facts(table_model(rows=6))) == []
    assert rules(plan_of(stages_of(3, 3)), facts(table_model(rows=6))) == ["layers", "layers"]


def test_number_of_stages_and_chunks_must_match() -> None:
    """Two stages listed for pipeline 3; one chunk each for two virtual stages."""
    assert rules(plan_of(stages_of(6, 6), pipeline_parallel=3)) == ["stages"]
    wrong = plan_of(stages_of(6, 6), virtual_stages=2, schedule="interleaved_1f1b")
    assert rules(wrong) == ["stages", "stages"]


def test_micro_batches_must_make_up_the_batch() -> None:
    """2 replicas x micro-batch 1 x 16 = 32 sequences are not 64."""
    (found,) = plan_violations(
        plan_of((), data=2, pipeline_parallel=1, num_micro_batches=16), facts()
    )
    assert found.rule == "micro_batches"
    assert "= 32 sequences, but the global batch is 64" in found.message


def test_devices_exist_and_are_used_once() -> None:
    """Stage 1 names device 16 of 16 and repeats device 0."""
    first, last = stages_of(6, 6, devices=2)
    wrong = last.model_copy(update={"devices": (0, 16)})
    messages = [v.message for v in plan_violations(plan_of((first, wrong), tensor=2), facts())]
    assert messages == [
        "devices 16 do not exist: the cluster has 0 to 15",
        "devices 0 are used more than once",
    ]


def test_stage_needs_all_its_devices() -> None:
    """Tensor 2 x data 2 is four devices per stage, not three."""
    assert rules(plan_of(stages_of(6, 6, devices=3), tensor=2, data=2)) == ["stage_devices"] * 2


def test_tensor_groups_of_a_plan_stay_inside_nodes() -> None:
    """Nodes of 3 and 5: devices 2 and 3 are on different nodes."""
    problem = facts(model_of(dense_layer(), repeat=12), cluster_of(3, 5))
    (first, last) = stages_of(6, 6, devices=2)
    crossing = (first, last.model_copy(update={"devices": (2, 3)}))
    assert rules(plan_of(crossing, tensor=2), problem) == ["stage_devices"]
    inside = (first, last.model_copy(update={"devices": (4, 3)}))
    assert rules(plan_of(inside, tensor=2), problem) == []


def test_tensor_group_may_be_whole_nodes() -> None:
    """16 ranks on two nodes of 8 are whole nodes; 12 devices of them are not."""
    assert rules(plan_of(stages_of(12, devices=16), tensor=16)) == []
    model = model_of(dense_layer(24, width=1536), repeat=12)
    found = rules(plan_of(stages_of(12, devices=12), tensor=12), facts(model))
    assert found == ["placement", "stage_devices"]
