"""Compute times of layers and ends, worked out by hand on a device with round figures."""

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import (
    ideal_device,
    ideal_rates,
    tiny_cluster,
    tiny_layer,
    tiny_model,
    tiny_stack,
    tiny_workload,
)

from apss_jax.datasheet.matmul import matmul_s
from apss_jax.datasheet.table import unit_table
from apss_jax.schema.errors import InputError
from apss_jax.schema.layers import Attention, LinearAttention, MoeMlp, StateSpace
from apss_jax.schema.model import Embedding, LayerRun, Tower
from apss_jax.schema.tables import Setting, UnitTable
from apss_jax.units import GB, TFLOP

TOKENS = 2 * 64  # of a micro-batch of 2
FLOPS = 100e12
MEMORY = 1000e9
PRODUCTS_S = 2 * TOKENS * (8 * 24 + 8 * 8 + 8 * 32 + 32 * 8) / FLOPS
SCORES_S = 2 * TOKENS * 64 * 8 / FLOPS  # two products of 2 T s h, half of each masked
HIDDEN_S = 2 * TOKENS * 11 * 8 / MEMORY
SPLIT_S = 2 * TOKENS * 2 * (24 + 32) / MEMORY
FORWARD_S = PRODUCTS_S + SCORES_S + HIDDEN_S + SPLIT_S
TWO = Setting(micro_batch=2)


def table(setting: Setting = TWO, **parts: object) -> UnitTable:
    """Returns the table of the tiny problem with some parts exchanged."""
    defaults = {
        "model": tiny_model(),
        "cluster": tiny_cluster(),
        "workload": tiny_workload(),
        "stack": tiny_stack(),
    }
    return unit_table(**{**defaults, **parts}, setting=setting)


def passes_s(found: UnitTable, unit: int = 1) -> tuple[float, float]:
    """Returns the forward and backward time of one unit on the first device type."""
    return tuple(found.compute_s[:, 0, unit])


def cluster_with(**changes: object) -> object:
    """Returns the tiny cluster with a device of other rates."""
    return tiny_cluster(device_types={"ideal": ideal_device(rates=ideal_rates(**changes))})


def test_a_layer_by_hand() -> None:
    """Four products, masked scores, and the traffic between them add up."""
    backward_s = 2 * (PRODUCTS_S + HIDDEN_S + SPLIT_S) + 2.5 * SCORES_S
    assert passes_s(table()) == pytest.approx((FORWARD_S, backward_s))


def test_tensor_parallelism_divides_all_but_the_hidden_vectors() -> None:
    """Norms and residuals stay whole on every rank."""
    found = table(Setting(tensor_parallel=2, micro_batch=2))
    expected_s = HIDDEN_S + (PRODUCTS_S + SCORES_S + SPLIT_S) / 2
    assert passes_s(found)[0] == pytest.approx(expected_s)


def test_sequence_parallelism_divides_the_hidden_vectors_too() -> None:
    """Then a rank computes its share of everything."""
    found = table(Setting(tensor_parallel=2, micro_batch=2, sequence_parallel=True))
    assert passes_s(found)[0] == pytest.approx(FORWARD_S / 2)


def test_context_parallelism_divides_the_tokens() -> None:
    """Each rank has half of the queries and looks at all keys."""
    assert passes_s(table(Setting(context_parallel=2, micro_batch=2)))[0] == pytest.approx(
        FORWARD_S / 2
    )


def test_a_dimension_of_half_size_costs_twice() -> None:
    """(1 + d/M)(1 + d/K)(1 + d/N) is 8 where all three equal d."""
    side = np.array([[1000.0]])
    found_s = matmul_s(side, side, side, np.array([FLOPS]), np.array([1000.0]))
    assert found_s[0, 0] == pytest.approx(8 * 2 * 1000**3 / FLOPS)


def test_fused_products_pay_one_launch() -> None:
    """Query, key and value are one product: four kernels in a layer, eight backward."""
    found = table(stack=tiny_stack(kernel_s=1.0))
    assert passes_s(found) == pytest.approx((4, 8), rel=1e-6)


def test_the_stack_slows_products_alone() -> None:
    """A slowdown of 2 doubles the products."""
    found = table(stack=tiny_stack(gemm_slowdown=2.0))
    assert passes_s(found)[0] == pytest.approx(FORWARD_S + PRODUCTS_S)


def test_the_host_bounds_a_small_layer() -> None:
    """A layer is never faster than its launches, which take twice as long backward."""
    found = table(stack=tiny_stack(cpu_forward_s=1e-3))
    assert passes_s(found) == pytest.approx((1e-3, 2e-3))


@pytest.mark.parametrize("power", [2.0, 6.0, 40.0])
def test_the_stack_says_how_sharply_the_longer_of_two_times_decides(power: float) -> None:
    """A host as slow as the device makes the forward pass 2^(1 / p) times as long."""
    stack = tiny_stack(cpu_forward_s=FORWARD_S, launch_power=power)
    assert passes_s(table(stack=stack))[0] == pytest.approx(FORWARD_S * 2 ** (1 / power))


def test_tensor_ranks_of_a_pipeline_cost_the_host_more() -> None:
    """Of 3 ms per rank, both passes of a layer, two ranks add 2 ms to the forward pass.

    On a single node they add nothing.
    """
    stack = tiny_stack(cpu_forward_s=1e-3, tensor_pipeline_cpu_s=3e-3)
    alone = Setting(tensor_parallel=2, micro_batch=2)
    piped = replace(alone, pipelined=True)
    one_node, two_nodes = tiny_cluster(), tiny_cluster(nodes=2)
    for degrees, cluster in ((alone, two_nodes), (piped, one_node)):
        found = table(degrees, stack=stack, cluster=cluster)
        assert passes_s(found) == pytest.approx((1e-3, 2e-3), rel=1e-4)
    found = table(piped, stack=stack, cluster=two_nodes)
    assert passes_s(found) == pytest.approx((3e-3, 6e-3), rel=1e-4)


def test_tensor_ranks_over_two_nodes_cost_the_host_more_still() -> None:
    """Four ranks on nodes of two: 4 x 2^0.3 of them, each 1 ms of the forward pass."""
    piped = Setting(tensor_parallel=4, micro_batch=2, pipelined=True)
    stack = tiny_stack(tensor_pipeline_cpu_s=3e-3)
    found = table(piped, stack=stack, cluster=tiny_cluster(devices=2, nodes=4))
    assert passes_s(found)[0] == pytest.approx(4 * 2**0.3 * 1e-3, rel=1e-4)


def test_the_host_launches_while_tensor_collectives_run() -> None:
    """Four calls of 0.1 s are part of what a second of launches hides; they count elsewhere."""
    stack = tiny_stack(cpu_forward_s=1.0, collective_latency_s=0.1)
    found = table(Setting(tensor_parallel=2, micro_batch=2, recompute="full"), stack=stack)
    forward_s = (1 + 0.4**6) ** (1 / 6) - 0.4
    backward_s = 2 * (1 + 0.2**6) ** (1 / 6) - 0.4
    assert passes_s(found) == pytest.approx((forward_s, backward_s + forward_s), rel=1e-6)


@pytest.mark.parametrize(("version", "slower"), [(1, 4), (2, 1), (3, 2)])
def test_generations_of_flash_attention_have_rates_of_their_own(version: int, slower: int) -> None:
    """At a quarter of the rate, scores take four times as long, forward and backward."""
    stack = tiny_stack(flash_attention_version=version)
    rates = {"first_flash_attention_fraction": 0.25, "tuned_flash_attention_fraction": 0.5}
    found = table(stack=stack, cluster=cluster_with(**rates))
    forward_s = FORWARD_S + (slower - 1) * SCORES_S
    backward_s = passes_s(table())[1] + (slower - 1) * 2.5 * SCORES_S
    assert passes_s(found) == pytest.approx((forward_s, backward_s))


def test_half_a_layer_has_half_the_launches() -> None:
    """A layer of one branch launches half of what a layer of two does."""
    layer = tiny_layer(feed_forward=None, num_norms=1)
    found = table(model=tiny_model(layer=layer), stack=tiny_stack(cpu_forward_s=1e-3))
    assert passes_s(found)[0] == pytest.approx(0.5e-3)


def test_full_recomputation_repeats_the_forward_pass() -> None:
    """The backward pass grows by one forward pass."""
    again = table(Setting(micro_batch=2, recompute="full"))
    assert passes_s(again)[1] - passes_s(table())[1] == pytest.approx(FORWARD_S)


def test_selective_recomputation_repeats_the_scores() -> None:
    """The backward pass grows by the forward attention (arXiv 2205.05198)."""
    again = table(Setting(micro_batch=2, recompute="selective"))
    assert passes_s(again)[1] - passes_s(table())[1] == pytest.approx(SCORES_S)


def test_torchtitans_selective_recomputation_repeats_half_of_the_products() -> None:
    """Attention is kept, of the products every second one, of the rest nothing."""
    stack = tiny_stack(selective_keeps="every_second_product")
    again = table(Setting(micro_batch=2, recompute="selective"), stack=stack)
    repeated_s = PRODUCTS_S / 2 + HIDDEN_S + SPLIT_S
    assert passes_s(again)[1] - passes_s(table())[1] == pytest.approx(repeated_s)


def test_plain_attention_computes_every_score_and_moves_it() -> None:
    """Without flash attention nothing is skipped and the one head's score travels 6.9 times."""
    attention = Attention(num_heads=1, num_kv_heads=1, head_dim=8)
    model = tiny_model(layer=tiny_layer(mixer=attention))
    found = table(model=model, stack=tiny_stack(flash_attention=False))
    moved_s = 6.9 * 2 * TOKENS * 64 / MEMORY
    assert passes_s(found)[0] == pytest.approx(FORWARD_S + SCORES_S + moved_s)


def test_heads_that_matrix_units_cannot_read_run_on_others() -> None:
    """Two heads of 4 values, not 8: plain products at the FP32 rate, half of the 16-bit one."""
    found = table(stack=tiny_stack(flash_attention=False))
    moved_s = 6.9 * 2 * TOKENS * 64 * 2 / MEMORY
    assert passes_s(found)[0] == pytest.approx(FORWARD_S + 3 * SCORES_S + moved_s)


def test_a_window_limits_the_keys() -> None:
    """With a window of 16 in 64 tokens the mean query sees 16 - 16^2 / 128 keys."""
    attention = Attention(num_heads=2, num_kv_heads=2, head_dim=4, window_tokens=16)
    found = table(model=tiny_model(layer=tiny_layer(mixer=attention)))
    expected_s = FORWARD_S - SCORES_S + 4 * TOKENS * (16 - 16**2 / 128) * 8 / FLOPS
    assert passes_s(found)[0] == pytest.approx(expected_s)


def test_attention_both_ways_has_no_masked_half() -> None:
    """An encoder computes twice the scores of a decoder."""
    attention = Attention(num_heads=2, num_kv_heads=2, head_dim=4, causal=False)
    found = table(model=tiny_model(layer=tiny_layer(mixer=attention)))
    assert passes_s(found)[0] == pytest.approx(FORWARD_S + SCORES_S)


def test_an_unfused_norm_moves_more() -> None:
    """Each of the two norms moves 50 hidden vectors of 16 bits more."""
    found = table(stack=tiny_stack(fused_norm=False))
    extra_s = 2 * 50 * 2 * TOKENS * 8 / MEMORY
    assert passes_s(found)[0] == pytest.approx(FORWARD_S + extra_s)


@pytest.mark.parametrize(
    "mixer",
    [
        LinearAttention(
            num_key_heads=2, num_value_heads=2, key_head_dim=4, value_head_dim=4, conv_kernel=4
        ),
        StateSpace(num_heads=2, head_dim=4, state_size=16, num_groups=1, conv_kernel=4),
    ],
    ids=lambda mixer: mixer.kind,
)
def test_recurrent_mixers_are_linear_in_the_sequence(
    mixer: LinearAttention | StateSpace,
) -> None:
    """A sequence twice as long costs exactly twice."""
    model = tiny_model(layer=tiny_layer(mixer=mixer))
    once, twice = (table(model=model, workload=tiny_workload(seq_len=s)) for s in (64, 128))
    assert passes_s(twice)[0] == pytest.approx(2 * passes_s(once)[0])


def moe_model(**changes: object) -> object:
    """Returns the tiny model with 4 experts of width 32, of which each token uses 2."""
    experts = MoeMlp(
        num_experts=4, experts_per_token=2, expert_intermediate_size=32, gated=False, **changes
    )
    return tiny_model(layer=tiny_layer(feed_forward=experts))


def test_experts_compute_what_tokens_are_sent_to_them() -> None:
    """Two experts per token cost twice the dense part, plus the router and the permutation."""
    router_s = 2 * TOKENS * 8 * 4 / FLOPS + 2 * TOKENS * 2 * 4 / MEMORY
    second_s = 2 * TOKENS * 2 * 8 * 32 / FLOPS + 2 * TOKENS * 2 * 32 / MEMORY
    routed_s = 4 * 2 * TOKENS * 2 * 8 / MEMORY
    found = table(model=moe_model())
    assert passes_s(found)[0] == pytest.approx(FORWARD_S + router_s + second_s + routed_s)


def test_expert_ranks_gather_rows_for_fewer_experts() -> None:
    """On ideal devices they change nothing; where small products are slow they help."""
    spread = Setting(micro_batch=2, expert_parallel=4)
    ideal, real = cluster_with(), cluster_with(gemm_half_size=64.0)
    times_s = [passes_s(table(s, model=moe_model(), cluster=ideal))[0] for s in (TWO, spread)]
    assert times_s[0] == pytest.approx(times_s[1])
    slow_s, fast_s = (passes_s(table(s, model=moe_model(), cluster=real))[0] for s in (TWO, spread))
    assert fast_s < slow_s


def test_the_head_by_hand() -> None:
    """Logits are one product and 16 bytes of traffic each, after the final norm."""
    logits = TOKENS * 256
    expected_s = 2 * logits * 8 / FLOPS + 16 * logits / MEMORY + 2 * 2 * TOKENS * 8 / MEMORY
    assert passes_s(table(), -1) == pytest.approx((expected_s, 2 * expected_s))


@pytest.mark.parametrize(
    ("vocab", "pads", "tensor", "slower"),
    [
        (257, False, 1, 4.0),
        (257, True, 1, 1.0),  # the stack pads
        (257, False, 2, 1.0),  # ranks divide it, so it is padded
        (264, False, 1, 1.0),  # rows of 528 bytes are whole
    ],
)
def test_a_vocabulary_that_nobody_pads_slows_its_product(
    vocab: int, pads: bool, tensor: int, slower: float
) -> None:
    """Rows of 514 bytes are no multiple of 16: the product takes four times as long."""
    model = tiny_model(embedding=Embedding(vocab_size=vocab))
    setting = Setting(micro_batch=2, tensor_parallel=tensor)
    stack = tiny_stack(pads_vocabulary=pads)
    whole, found = (
        passes_s(table(setting, model=model, stack=stack, cluster=cluster_with(**rates)), -1)[0]
        for rates in ({"unaligned_gemm_slowdown": 1.0}, {"unaligned_gemm_slowdown": 4.0})
    )
    padded = 128 * tensor * math.ceil(vocab / (128 * tensor)) / tensor
    product_s = 2 * TOKENS * 8 * padded / FLOPS
    assert found - whole == pytest.approx((slower - 1) * product_s)


def test_the_embedding_by_hand() -> None:
    """A look-up moves four hidden vectors."""
    assert passes_s(table(), 0)[0] == pytest.approx(4 * 2 * TOKENS * 8 / MEMORY)


def test_a_tied_head_still_multiplies() -> None:
    """Tying saves parameters, not time."""
    model = tiny_model()
    tied = model.model_copy(update={"head": model.head.model_copy(update={"tied": True})})
    assert passes_s(table(model=tied), -1) == passes_s(table(), -1)


def test_fp8_speeds_layers_and_leaves_the_head() -> None:
    """Layers use the FP8 peak; logits stay in 16 bits."""
    peaks = {"bf16": 100 * TFLOP, "fp8": 200 * TFLOP}
    cluster = tiny_cluster(device_types={"ideal": ideal_device(peak_flops_per_s=peaks)})
    found = table(cluster=cluster, workload=tiny_workload(precision="fp8"))
    assert passes_s(found)[0] == pytest.approx(FORWARD_S - PRODUCTS_S / 2)
    assert passes_s(found, -1) == passes_s(table(), -1)


def test_a_precision_that_a_device_lacks_is_refused() -> None:
    """The message names the device type."""
    with pytest.raises(InputError, match="ideal"):
        table(workload=tiny_workload(precision="fp8"))


def test_each_device_type_has_its_own_times() -> None:
    """A device with half the rates takes twice as long."""
    slow = ideal_device(peak_flops_per_s={"bf16": 50 * TFLOP}, memory_bytes_per_s=500 * GB)
    cluster = tiny_cluster()
    group = cluster.nodes[0]
    mixed = cluster.model_copy(
        update={
            "device_types": {"ideal": ideal_device(), "slow": slow},
            "nodes": (group, group.model_copy(update={"device_type": "slow"})),
        }
    )
    found = table(cluster=mixed)
    assert found.device_types == ("ideal", "slow")
    np.testing.assert_allclose(found.compute_s[:, 1], 2 * found.compute_s[:, 0])


def test_a_tower_runs_with_the_embedding() -> None:
    """Its layers work on their own tokens; one without tokens costs nothing but memory."""
    run = LayerRun(repeat=3, layer=tiny_layer())
    tower = Tower(name="vision", hidden_size=8, tokens_per_sequence=64, layers=(run,))
    idle = replace_tokens(tower, 0)
    plain, busy, still = (
        passes_s(table(model=tiny_model(towers=towers)), 0)[0] for towers in ((), (tower,), (idle,))
    )
    assert busy - plain == pytest.approx(3 * FORWARD_S)
    assert still == plain


def replace_tokens(tower: Tower, tokens: int) -> Tower:
    """Returns the tower with other tokens per sequence."""
    return tower.model_copy(update={"tokens_per_sequence": tokens})


def test_the_setting_is_part_of_the_table() -> None:
    """A table says what it was made for."""
    setting = replace(TWO, tensor_parallel=2)
    assert table(setting).setting == setting
