"""Bytes and calls of one-way collectives, counted by hand."""

import numpy as np
import pytest
from builders import tiny_cluster, tiny_layer, tiny_model, tiny_stack, tiny_workload

from apss_jax.datasheet.table import unit_table
from apss_jax.schema.layers import DenseMlp, MoeMlp
from apss_jax.schema.model import Model
from apss_jax.schema.tables import COMM_KINDS, Setting

VOCAB = 256  # padded to 128 for each of two tensor ranks
HIDDEN_BYTES = 2 * 64 * 8  # 16-bit vectors of one sequence of 64 tokens
EXPERTS = MoeMlp(num_experts=4, experts_per_token=2, expert_intermediate_size=32, gated=False)
MOE = tiny_model(layer=tiny_layer(feed_forward=EXPERTS))


def traffic(
    kind: str, setting: Setting, model: Model | None = None, unit: int = 1
) -> tuple[list[float], list[float]]:
    """Returns (bytes, calls) of one kind, forward and backward."""
    chosen = model or tiny_model()
    found = unit_table(chosen, tiny_cluster(), tiny_workload(), tiny_stack(), setting)
    index = COMM_KINDS.index(kind)
    return found.comm_bytes[:, index, unit].tolist(), found.comm_calls[:, index, unit].tolist()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_layer_has_two_all_reduces_each_way(sequence_parallel: bool) -> None:
    """Four one-way collectives of the hidden vectors forward and four backward."""
    setting = Setting(tensor_parallel=2, sequence_parallel=sequence_parallel)
    assert traffic("tensor", setting) == ([4 * HIDDEN_BYTES] * 2, [4, 4])


def test_one_branch_has_one_all_reduce() -> None:
    """A layer without a feed-forward part has half the traffic."""
    model = tiny_model(layer=tiny_layer(feed_forward=None, num_norms=1))
    assert traffic("tensor", Setting(tensor_parallel=2), model) == ([2 * HIDDEN_BYTES] * 2, [2, 2])


def test_full_recomputation_repeats_the_forward_collectives() -> None:
    """They are counted in the backward pass."""
    setting = Setting(tensor_parallel=2, recompute="full")
    assert traffic("tensor", setting) == ([4 * HIDDEN_BYTES, 8 * HIDDEN_BYTES], [4, 8])


def test_selective_recomputation_repeats_none() -> None:
    """Attention scores need no tensor collective."""
    chosen = Setting(tensor_parallel=2, recompute="selective")
    assert traffic("tensor", chosen) == traffic("tensor", Setting(tensor_parallel=2))


@pytest.mark.parametrize(("sequence_parallel", "calls"), [(False, 6), (True, 4)])
def test_gates_of_some_stacks_reduce_on_their_own(sequence_parallel: bool, calls: int) -> None:
    """One more backward for up and gate; a scattered sequence is reduced once for both."""
    gated = tiny_model(layer=tiny_layer(feed_forward=DenseMlp(intermediate_size=32, gated=True)))
    setting = Setting(tensor_parallel=2, sequence_parallel=sequence_parallel)
    stack = tiny_stack(reduces_gate_apart=True)
    found = unit_table(gated, tiny_cluster(), tiny_workload(), stack, setting)
    index = COMM_KINDS.index("tensor")
    assert found.comm_calls[:, index, 1].tolist() == [4, calls]
    assert found.comm_bytes[:, index, 1].tolist() == [4 * HIDDEN_BYTES, calls * HIDDEN_BYTES]


def test_whole_logits_are_gathered_and_kept_by_every_tensor_rank() -> None:
    """16 bits of each of 256 logits a token, and twice what two ranks keep of them apart."""
    setting, index = Setting(tensor_parallel=2), COMM_KINDS.index("tensor")
    apart, whole = (
        unit_table(tiny_model(), tiny_cluster(), tiny_workload(), tiny_stack(**flag), setting)
        for flag in ({}, {"whole_logits": True})
    )
    logits = 64 * VOCAB
    assert whole.comm_bytes[0, index, -1] == 2 * logits
    assert whole.comm_calls[0, index, -1] == 1
    kept = tiny_stack().logit_bytes * logits / 2
    assert whole.saved_bytes[-1] - apart.saved_bytes[-1] == pytest.approx(kept)
    assert whole.compute_s[:, 0, -1].sum() > apart.compute_s[:, 0, -1].sum()


def test_ends_reduce_the_embedding_the_loss_and_its_gradient() -> None:
    """One all-reduce of the look-up; 8 bytes a token forward and the hidden vectors backward."""
    setting = Setting(tensor_parallel=2)
    assert traffic("tensor", setting, unit=0) == ([2 * HIDDEN_BYTES, 0], [2, 0])
    assert traffic("tensor", setting, unit=-1) == ([2 * 8 * 64, 2 * HIDDEN_BYTES], [2, 2])


def test_groups_of_one_send_nothing() -> None:
    """Without degrees there are neither bytes nor calls."""
    found = unit_table(MOE, tiny_cluster(), tiny_workload(), tiny_stack(), Setting(micro_batch=4))
    assert not found.comm_bytes.any()
    assert not found.comm_calls.any()


def test_context_ranks_gather_keys_and_values() -> None:
    """The group's whole K and V once forward; again backward, with their gradients."""
    whole = 2 * 64 * 16
    assert traffic("context", Setting(context_parallel=4)) == ([whole, 2 * whole], [1, 2])


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_attention_gathers_again(recompute: str) -> None:
    """Both kinds of recomputation repeat the exchange of keys and values."""
    whole = 2 * 64 * 16
    setting = Setting(context_parallel=2, tensor_parallel=2, recompute=recompute)
    assert traffic("context", setting) == ([whole / 2, 3 * whole / 2], [1, 3])


def test_expert_ranks_exchange_tokens_twice_each_way() -> None:
    """Two all-to-alls of two copies of each token."""
    assert traffic("expert", Setting(expert_parallel=4), MOE) == (
        [2 * 2 * HIDDEN_BYTES] * 2,
        [2, 2],
    )


def test_sequence_parallelism_divides_the_exchanged_tokens() -> None:
    """Each tensor rank sends its share of the sequence."""
    setting = Setting(expert_parallel=4, tensor_parallel=2, sequence_parallel=True)
    assert traffic("expert", setting, MOE)[0] == [2 * HIDDEN_BYTES] * 2


def test_traffic_grows_with_the_micro_batch() -> None:
    """Bytes are proportional to it, calls are not."""
    bytes_1, calls_1 = traffic("tensor", Setting(tensor_parallel=2))
    bytes_4, calls_4 = traffic("tensor", Setting(tensor_parallel=2, micro_batch=4))
    np.testing.assert_allclose(bytes_4, np.array(bytes_1) * 4)
    assert calls_4 == calls_1
