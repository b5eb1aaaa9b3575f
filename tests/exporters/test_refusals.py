"""Which plans a framework refuses, by rule; which it takes, and what is written then."""

import pytest
from planned import A100, H100, MIXED, launch_of_split, mixed, on_devices, small_model, typed

import apss_jax
from apss_jax.exporters.export import REFUSED
from apss_jax.exporters.formats import FORMATS, export_files, export_refusals, launch_of
from apss_jax.importers.clusters import load_cluster
from apss_jax.legality.framework_rules import COMMON
from apss_jax.legality.launch import Launch
from apss_jax.schema.errors import InputError
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp, StateSpace
from apss_jax.schema.model import LayerRun, LayerTable, Model, TableRow

ROUTED = MoeMlp(num_experts=8, experts_per_token=2, expert_intermediate_size=64)
ATTENTION = Attention(num_heads=8, num_kv_heads=8, head_dim=8)
EXPERTS = small_model(8, Layer(mixer=ATTENTION, feed_forward=ROUTED))
SCAN = Layer(
    mixer=StateSpace(num_heads=8, head_dim=8, state_size=16, num_groups=2, conv_kernel=4),
    num_norms=1,
)
PAIR = [
    Layer(
        mixer=ATTENTION.model_copy(update={"window_tokens": window}),
        feed_forward=DenseMlp(intermediate_size=256),
        num_norms=4,
    )
    for window in (128, None)
]
GEMMA_2 = Model(
    name="pairs",
    hidden_size=64,
    embedding=small_model().embedding,
    layers=tuple(LayerRun(layer=PAIR[i % 2]) for i in range(8)),
)


ROUTED_WITHOUT_SEQUENCE = small_model(8, Layer(mixer=None, feed_forward=ROUTED))
ENCODED = small_model(8, encoder_layers=4)
TWICE = on_devices(launch_of_split([4, 4]), [(0, 1), (1, 2)])
TABLE = Model(
    name="table",
    table=LayerTable(
        rows=(
            TableRow(
                name="r", num_parameters=1, forward_s={"x": {"1": 1.0}}, output_bytes=1,
                saved_bytes=1,
            ),
        )
        * 8
    ),
)  # fmt: skip


def changed(launch: Launch, **fields: object) -> Launch:
    """Returns the launch with other fields of its plan."""
    return Launch(launch.plan.model_copy(update=fields), launch.model, launch.cluster)


def headless() -> Launch:
    """Returns a plan whose last stage has no head."""
    plain = launch_of_split([4, 4])
    first, last = plain.plan.stages
    bare = last.chunks[0].model_copy(update={"head": False})
    return changed(plain, stages=(first, last.model_copy(update={"chunks": (bare,)})))


# Plans that break one rule of every framework.
COMMON_CASES = {
    "architecture": launch_of_split([8], model=TABLE),
    "stages": changed(launch_of_split([4, 4]), virtual_stages=2),
    "layers": launch_of_split([3, 4], model=small_model(8)),
    "ends": headless(),
    "batch": changed(launch_of_split([4, 4]), global_batch=7),
    "devices": TWICE,
}
# Plans that break one rule of Megatron, of Megatron-Bridge and of FlagScale, which run it.
MEGATRON_CASES = {
    "zero": launch_of_split([4, 4], zero_stage=2),
    "gpipe": launch_of_split([4, 4], schedule="gpipe"),
    "rounds": launch_of_split([2] * 4, chunks=2, num_micro_batches=3),
    "routed_sequence": launch_of_split([8], tensor_parallel=2, model=ROUTED_WITHOUT_SEQUENCE),
    "hybrid_split": launch_of_split([3, 5], model=small_model(8, SCAN)),
    "encoder": launch_of_split([3, 5], model=ENCODED),
}
OWN_CASES: list[tuple[str, Launch, str]] = [
    ("deepspeed", launch_of_split([4, 4], zero_stage=2), "zero"),
    ("deepspeed", launch_of_split([4, 4], zero_stage=3), "zero"),
    ("deepspeed", launch_of_split([2] * 4, chunks=2), "interleaving"),
    ("deepspeed", launch_of_split([4, 4], schedule="gpipe"), "gpipe"),
    ("deepspeed", launch_of_split([4, 4], context_parallel=2), "context"),
    ("deepspeed", launch_of_split([4, 4], expert_parallel=2, model=EXPERTS), "experts"),
    ("deepspeed", launch_of_split([4, 4], recompute="selective"), "recompute"),
    (
        "deepspeed",
        launch_of_split([4, 4], tensor_parallel=2, sequence_parallel=True),
        "sequence_parallel",
    ),
    ("deepspeed", launch_of_split([8], tensor_parallel=2, zero_stage=3), "tensor_sharding"),
    ("deepspeed", launch_of_split([8], zero_shards=2, data_parallel=4), "zero_shards"),
    ("flagscale", mixed([1, 1, 1, 1], chunks=2), "hetero_chunks"),
    ("flagscale", mixed([0, 4]), "empty_stage"),
    (
        "flagscale",
        typed(mixed([2, 3]), load_cluster(MIXED), [f"{A100}+{H100}", H100]),
        "mixed_stage",
    ),
    (
        "flagscale",
        typed(
            on_devices(
                launch_of_split([1, 1, 1], data_parallel=4),
                [(0, 1, 2, 3), (8, 9, 10, 11), (4, 5, 6, 7)],
            ),
            load_cluster(MIXED),
            [A100, H100, A100],
        ),
        "hetero_host",
    ),
    ("torchtitan", launch_of_split([4, 4], zero_stage=1), "zero"),
    (
        "torchtitan",
        launch_of_split([2] * 4, chunks=2, zero_stage=3, num_micro_batches=3),
        "rounds",
    ),
    (
        "torchtitan",
        launch_of_split([8], zero_stage=0, expert_parallel=2, model=EXPERTS),
        "replicated",
    ),
    (
        "torchtitan",
        launch_of_split([8], zero_stage=3, tensor_parallel=2, expert_parallel=2, model=EXPERTS),
        "experts",
    ),
    ("torchtitan", launch_of_split([8], zero_stage=3, precision="fp16"), "precision"),
    (
        "torchtitan",
        launch_of_split([8], zero_stage=3, model=small_model(8, encoder_layers=4)),
        "encoder",
    ),
    (
        "torchtitan",
        launch_of_split([8], zero_stage=3, zero_shards=1, context_parallel=2),
        "zero_shards",
    ),
    ("maxtext", launch_of_split([8], zero_shards=2, data_parallel=4), "zero_shards"),
    (
        "maxtext",
        launch_of_split([8], zero_stage=3, zero_shards=1, context_parallel=2),
        "whole_contexts",
    ),
    ("maxtext", launch_of_split([3, 5]), "equal_stages"),
    ("maxtext", launch_of_split([4, 4], num_micro_batches=3), "rounds"),
    ("maxtext", mixed([4, 4]), "one_type"),
    ("maxtext", launch_of_split([1] * 8, model=GEMMA_2), "pairs"),
    ("maxtext", launch_of_split([8], model=small_model(8, encoder_layers=4)), "encoder"),
    ("jax", launch_of_split([8], zero_shards=2, data_parallel=4), "zero_shards"),
    ("jax", launch_of_split([3, 5]), "equal_stages"),
    ("jax", mixed([4, 4]), "one_type"),
]
CASES = [
    *((name, launch, rule) for name in FORMATS for rule, launch in COMMON_CASES.items()),
    *(
        (name, launch, rule)
        for name in ("megatron", "bridge", "flagscale")
        for rule, launch in MEGATRON_CASES.items()
    ),
    *OWN_CASES,
]


@pytest.mark.parametrize(("framework", "launch", "rule"), CASES)
def test_a_rule_keeps_a_plan_from_a_framework(framework: str, launch: Launch, rule: str) -> None:
    """A plan that breaks one rule is refused by it alone; the file says rule, reason, source."""
    files, found = export_files(launch, framework)
    assert [each.rule for each in found] == [rule]
    assert f"rule: {rule}" in files[REFUSED] and "source: " in files[REFUSED]


def test_every_rule_is_tried() -> None:
    """Each rule of each framework has a plan above, and each plan a rule: none is gone."""
    rules = {
        (name, rule.name)
        for name, exporter in FORMATS.items()
        for rule in (*COMMON, *exporter.rules)
    }
    assert rules == {(name, rule) for name, _, rule in CASES}


@pytest.mark.parametrize("framework", FORMATS)
def test_a_plain_plan_goes_everywhere(framework: str) -> None:
    """One stage of data ranks alone is taken by every framework."""
    launch = launch_of_split([8], zero_stage=0)
    assert export_refusals(launch, framework) == ()


@pytest.mark.parametrize("framework", FORMATS)
def test_files_are_those_that_are_declared(framework: str) -> None:
    """What an exporter writes is among the names by which its folder may be replaced."""
    launch = launch_of_split([4, 4], zero_stage=3 if framework == "torchtitan" else 1)
    files, found = export_files(launch, framework)
    assert found == ()
    assert set(files) <= set(FORMATS[framework].file_names)


@pytest.mark.parametrize("framework", FORMATS)
def test_the_version_is_stated(framework: str) -> None:
    """The first line says for which framework, and for which version of it."""
    exporter = FORMATS[framework]
    launch = launch_of_split([8], zero_stage=0)
    said = "".join(export_files(launch, framework)[0].values())
    assert f"for {exporter.title}, {exporter.version}" in said


def test_the_public_function() -> None:
    """A plan that names nothing known is written all the same, its model left to the user."""
    plan = launch_of_split([3, 5]).plan
    text = apss_jax.export_plan(plan, "megatron")
    assert "Et*3|t*5L" in text
    assert "the model is not at hand" in text


def test_the_public_function_refuses() -> None:
    """A refusal is an error that names the rule and another way."""
    with pytest.raises(InputError, match="equal_stages"):
        apss_jax.export_plan(launch_of_split([3, 5]).plan, "maxtext")
    with pytest.raises(InputError, match="is no format"):
        apss_jax.export_plan(launch_of_split([3, 5]).plan, "fortran")


def test_a_plan_of_an_unknown_model_still_needs_stages() -> None:
    """Nobody could say where its layers go."""
    bare = launch_of_split([8]).plan.model_copy(update={"stages": ()})
    assert export_refusals(launch_of(bare), "jax")[0].rule == "stages"
