"""Class C of the reported cases: what frameworks accept and refuse, by the rule's name."""

import pytest
from legality_problems import cluster_of, dense_layer, facts, layout, model_of, moe_layer

from apss_jax.importers.megatron_arguments import read_megatron_arguments
from apss_jax.importers.megatron_model import padded_vocab
from apss_jax.importers.megatron_run import run_of_arguments, split_of_arguments
from apss_jax.legality.check import violations
from apss_jax.legality.facts import Facts
from apss_jax.legality.megatron_arguments import argument_violations

PP = "--pipeline-model-parallel-size"
TP = "--tensor-model-parallel-size"
VPP = "--num-virtual-stages-per-pipeline-rank"
ENDS = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"


def refused(line: str) -> set[str]:
    """Returns the rules that Megatron's arguments break."""
    return {each.rule for each in argument_violations(read_megatron_arguments(line))}


def said(line: str) -> str:
    """Returns what is wrong with Megatron's arguments, in words."""
    return " ".join(each.message for each in argument_violations(read_megatron_arguments(line)))


def broken(problem: Facts, *degrees: int, **others: object) -> set[str]:
    """Returns the rules that a layout breaks."""
    return {each.rule for each in violations(layout(*degrees, **others), problem)}


def test_thirty_layers_on_four_stages() -> None:
    """C01: an error that says what older releases would build, and the way out."""
    line = f"--num-layers 30 {PP} 4"
    assert refused(line) == {"even_layers"}
    assert "build 28 layers" in said(line)
    assert "--pipeline-model-parallel-layout" in said(line)
    uneven = f"{line} --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7"
    assert refused(uneven) == set()
    assert split_of_arguments(read_megatron_arguments(uneven)) == (7, 8, 8, 7)


def test_virtual_stages_that_lose_layers() -> None:
    """C02: 5 layers of a rank are no 2 chunks; 5 chunks of one layer are legal."""
    line = f"--num-layers 80 {PP} 16 {VPP}"
    assert refused(f"{line} 2") == {"even_layers"}
    assert "Legal virtual stages: 1, 5" in said(f"{line} 2")
    assert refused(f"{line} 5") == set()


def test_counts_of_stages_without_a_pipeline() -> None:
    """C04: --decoder-last-pipeline-num-layers 1 alone would make 20 layers 1."""
    line = "--num-layers 20 --decoder-last-pipeline-num-layers 1"
    assert refused(line) == {"counts_need_pipeline"}


def test_glm_on_four_stages() -> None:
    """C05: 46 layers on 4 stages are refused; first 11 and last 11, or 2 stages, are not."""
    line = f"--num-layers 46 {TP} 8 --sequence-parallel --num-experts 128"
    assert refused(f"{line} {PP} 4") == {"even_layers"}
    counts = "--decoder-first-pipeline-num-layers 11 --decoder-last-pipeline-num-layers 11"
    assert refused(f"{line} {PP} 4 {counts}") == set()
    assert refused(f"{line} {PP} 2") == set()


def test_heads_of_llama_33b() -> None:
    """C07: 52 heads take tensor 1, 2, 4, 13, 26 and 52, and the message lists them."""
    problem = facts(model_of(dense_layer(52, width=52 * 24)), cluster_of(52))
    legal = [degree for degree in range(1, 53) if not broken(problem, degree)]
    assert legal == [1, 2, 4, 13, 26, 52]
    (found,) = violations(layout(8), problem)
    assert found.rule == "heads" and "legal tensor parallel: 1, 2, 4, 13, 26" in found.message


def test_deepspeed_pipelines() -> None:
    """C09: ZeRO 1 beside a pipeline, never 2 or 3."""
    problem = facts(stack="deepspeed")
    found = [broken(problem, 1, 2, 2, zero_stage=stage) for stage in (1, 2, 3)]
    assert found == [set(), {"zero"}, {"zero"}]


@pytest.mark.parametrize(
    ("data", "batch", "micro_batch", "legal"),
    [(12, 2048, 1, False), (9, 2048, 1, False), (12, 2040, 1, True), (8, 2048, 4, True)],
)
def test_batches_that_divide(data: int, batch: int, micro_batch: int, legal: bool) -> None:
    """C11: replicas that do not divide a batch are out, and the batch is not changed."""
    problem = facts(cluster=cluster_of(8, 8), batch=batch)
    found = broken(problem, 1, 1, data, micro_batch=micro_batch)
    assert found == (set() if legal else {"batch"})


def test_ramp_up_steps_divide_too() -> None:
    """C11: a ramp-up in steps of 32 with micro-batches of 3 never comes out."""
    line = "--micro-batch-size 3 --global-batch-size 96 --rampup-batch-size 96 32 1000000"
    assert refused(line) == {"ramp_up"}


def test_nanotron_fills_its_pipeline() -> None:
    """C12: four stages need four micro-batches."""
    counts = (2, 4)
    found = [broken(facts(batch=count, stack="nanotron"), 1, 4) for count in counts]
    assert found == [{"filled"}, set()]


def test_a_vocabulary_that_tensor_ranks_do_not_divide() -> None:
    """C14: 151,669 rows on four ranks: 151,672 at least, 152,064 by Megatron's default."""
    assert padded_vocab(151_669, 1, 4) == 151_672
    assert padded_vocab(151_669, 128, 4) == 152_064


@pytest.mark.parametrize(("vocab", "tensor"), [(129_280, 24), (151_552, 6), (32_001, 2)])
def test_vocabularies_that_need_padding(vocab: int, tensor: int) -> None:
    """C16: each is padded to the next multiple of its ranks."""
    assert vocab % tensor
    assert 0 < padded_vocab(vocab, 1, tensor) - vocab < tensor


def test_all_rules_at_once() -> None:
    """C18: 256 experts by 3 and 64 heads by 3 are both told, with the values that are legal."""
    problem = facts(model_of(moe_layer(256, heads=64)), cluster_of(6), batch=6)
    found = violations(layout(3, expert_parallel=3), problem)
    assert {"experts", "heads"} <= {each.rule for each in found}
    assert all("legal" in each.message for each in found if each.rule in ("experts", "heads"))


@pytest.mark.parametrize(
    ("stages", "overlap", "legal"),
    [(1, True, False), (2, True, True), (2, False, False), (4, False, True)],
)
def test_interleaving(stages: int, overlap: bool, legal: bool) -> None:
    """C19: pipelines above 1 with overlapped transfers, above 2 without."""
    line = f"--num-layers 8 {PP} {stages} {VPP} 2"
    found = refused(line if overlap else f"{line} --no-overlap-p2p-communication")
    assert found == (set() if legal else {"interleaving"})


@pytest.mark.parametrize(
    ("tokens", "context", "legal"), [(8192, 3, False), (8192, 8, True), (1000, 4, True)]
)
def test_sequences_and_context_ranks(tokens: int, context: int, legal: bool) -> None:
    """C20: a sequence is a multiple of twice the context ranks."""
    found = broken(facts(seq_len=tokens), 1, 1, 1, context_parallel=context)
    assert found == (set() if legal else {"sequence"})


def test_the_world_is_divided() -> None:
    """C20: 16 devices are no multiple of tensor 2 x pipeline 3 x context 1."""
    given = read_megatron_arguments(f"--num-layers 9 {TP} 2 {PP} 3")
    assert [each.rule for each in argument_violations(given, 16)] == ["world"]
    assert argument_violations(given, 12) == ()


@pytest.mark.parametrize(("layers", "stages"), [(126, 16), (70, 12), (94, 8)])
def test_ends_that_count_as_layers(layers: int, stages: int) -> None:
    """C22: with embedding and loss counted these divide, and the end stages hold one less."""
    line = f"--num-layers {layers} {PP} {stages}"
    assert refused(f"{line} {ENDS}") == set()
    split = split_of_arguments(read_megatron_arguments(f"{line} {ENDS}"))
    each = (layers + 2) // stages
    assert split == (each - 1, *[each] * (stages - 2), each - 1)
    assert refused(line) == {"even_layers"}


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (f"--num-layers 8 {PP} 4 --cpu-offloading", "cpu_offloading"),
        ("--num-layers 8 --cpu-offloading --recompute-granularity full", "cpu_offloading"),
        (
            "--num-layers 8 --recompute-granularity selective --recompute-modules moe "
            "--overlap-moe-expert-parallel-comm",
            "recompute_overlap",
        ),
        (
            "--num-layers 8 --recompute-granularity selective --recompute-modules shared_experts "
            "--moe-shared-expert-overlap",
            "recompute_overlap",
        ),
    ],
)
def test_options_that_exclude_each_other(line: str, rule: str) -> None:
    """C23: each pair is refused by name."""
    assert refused(line) == {rule}


def test_what_is_no_contradiction() -> None:
    """C23: the optimizer may be offloaded beside a pipeline; one tensor rank has no sequence."""
    assert refused(f"--num-layers 8 {PP} 4 --optimizer-cpu-offload") == set()
    run = run_of_arguments(read_megatron_arguments("--num-layers 8 --sequence-parallel"), 8)
    assert run.layout.sequence_parallel is False
    assert any("switches it off" in note for note in run.notes)
