"""Which plans a framework refuses, by rule; which it takes, and what is written then."""

import pytest
from planned import A100, H100, MIXED, launch_of_split, mixed, on_devices, small_model, typed

import apss_jax
from apss_jax.exporters.export import REFUSED
from apss_jax.exporters.formats import FORMATS, export_files, export_refusals, launch_of
from apss_jax.importers.clusters import load_cluster
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


@pytest.mark.parametrize(
    ("framework", "launch", "rule"),
    [
        ("megatron", launch_of_split([3, 5], model=small_model(8, SCAN)), "hybrid_split"),
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
        (
            "torchtitan",
            launch_of_split([8], zero_stage=3, model=small_model(8, encoder_layers=4)),
            "encoder",
        ),
        ("maxtext", launch_of_split([3, 5]), "equal_stages"),
        ("maxtext", launch_of_split([4, 4], num_micro_batches=3), "rounds"),
        ("maxtext", mixed([4, 4]), "one_type"),
        ("maxtext", launch_of_split([1] * 8, model=GEMMA_2), "pairs"),
        ("maxtext", launch_of_split([8], model=small_model(8, encoder_layers=4)), "encoder"),
        ("jax", launch_of_split([3, 5]), "equal_stages"),
        ("jax", mixed([4, 4]), "one_type"),
    ],
)
def test_a_rule_keeps_a_plan_from_a_framework(framework: str, launch: Launch, rule: str) -> None:
    """A plan that breaks one rule is refused by it alone; the file says rule, reason, source."""
    files, found = export_files(launch, framework)
    assert [each.rule for each in found] == [rule]
    assert f"rule: {rule}" in files[REFUSED] and "source: " in files[REFUSED]


def test_every_rule_is_tried() -> None:
    """The plans above and those for Megatron cover every rule of every framework."""
    rules = {(name, rule.name) for name, exporter in FORMATS.items() for rule in exporter.rules}
    marks = test_a_rule_keeps_a_plan_from_a_framework.pytestmark  # type: ignore[attr-defined]
    tried = {(name, rule) for name, _, rule in marks[0].args[1]}
    megatron = {rule.name for rule in FORMATS["megatron"].rules}
    others = {(n, r) for n, r in rules if n not in ("megatron", "bridge") and r not in megatron}
    assert others - tried == set()


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


def test_a_table_is_refused_everywhere() -> None:
    """A model given as measured rows has no architecture."""
    row = TableRow(
        name="r", num_parameters=1, forward_s={"x": {"1": 1.0}}, output_bytes=1, saved_bytes=1
    )
    table = Model(name="table", table=LayerTable(rows=(row,) * 8))
    launch = launch_of_split([8], model=table)
    assert {export_refusals(launch, name)[0].rule for name in FORMATS} == {"architecture"}


def test_a_plan_without_stages_is_refused() -> None:
    """Nobody could say where its layers go."""
    bare = launch_of_split([8]).plan.model_copy(update={"stages": ()})
    assert export_refusals(launch_of(bare), "jax")[0].rule == "stages"
