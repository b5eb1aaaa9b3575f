"""Parameters and activations that one device holds, against published formulas and by hand."""

from itertools import product

import pytest
from builders import tiny_cluster, tiny_layer, tiny_model, tiny_stack, tiny_workload

from apss_jax.datasheet.table import unit_table
from apss_jax.schema.layers import Attention, DenseMlp, Layer, MoeMlp
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.tables import Setting, UnitTable

# GPT-3 175B as in Korthikanti et al. 2022 (arXiv 2205.05198), table 3.
HIDDEN, HEADS, SEQ = 12288, 96, 2048
SBH = SEQ * HIDDEN
SCORES = 5 * HEADS * SEQ / HIDDEN


def gpt3() -> Model:
    """Returns one layer of GPT-3 175B between its ends."""
    attention = Attention(num_heads=HEADS, num_kv_heads=HEADS, head_dim=HIDDEN // HEADS)
    feed_forward = DenseMlp(intermediate_size=4 * HIDDEN, gated=False)
    layer = Layer(mixer=attention, feed_forward=feed_forward)
    return Model(
        name="gpt3",
        hidden_size=HIDDEN,
        embedding=Embedding(vocab_size=51200),
        layers=(LayerRun(layer=layer),),
        head=Head(tied=True),
    )


def table(setting: Setting, model: Model | None = None, **stack: object) -> UnitTable:
    """Returns the table of GPT-3's layer, or of another model, with dropout, without flash."""
    workload = tiny_workload(seq_len=SEQ, precision="fp16")
    chosen = tiny_stack(**{"flash_attention": False, "dropout": True, **stack})
    return unit_table(model or gpt3(), tiny_cluster(), workload, chosen, setting)


@pytest.mark.parametrize(
    ("setting", "per_sbh"),
    [
        (Setting(), 34 + SCORES),  # equation 1
        (Setting(tensor_parallel=8), 10 + (24 + SCORES) / 8),  # equation 2
        (Setting(tensor_parallel=8, sequence_parallel=True), (34 + SCORES) / 8),  # equation 4
        (Setting(tensor_parallel=8, sequence_parallel=True, recompute="selective"), 34 / 8),  # 6
        (Setting(recompute="full"), 2),
        (Setting(micro_batch=4), 4 * (34 + SCORES)),
    ],
)
def test_saved_activations_are_the_published_formula(setting: Setting, per_sbh: float) -> None:
    """What a GPT layer keeps is s b h times the figure of Korthikanti et al. 2022."""
    assert table(setting).saved_bytes[1] == pytest.approx(SBH * per_sbh)


def test_flash_attention_keeps_no_scores() -> None:
    """With it the term 5 a s / h is gone, as under selective recomputation."""
    assert table(Setting(), flash_attention=True).saved_bytes[1] == pytest.approx(SBH * 34)


def test_without_dropout_no_mask_is_kept() -> None:
    """Both branches lose a mask of s b h, each score its mask and its second copy: 5 become 2."""
    assert table(Setting(), dropout=False).saved_bytes[1] == pytest.approx(
        SBH * (32 + SCORES * 2 / 5)
    )


def test_some_stacks_keep_every_second_product_alone() -> None:
    """Of queries, keys, values, attention's output and both layers of the feed-forward part.

    They put out 3 + 1 + 4 + 1 times h values, half of which stay beside the input and what
    attention put out, each 2 bytes; recomputation holds the whole layer for a moment.
    """
    found = table(Setting(recompute="selective"), selective_keeps="every_second_product")
    assert found.saved_bytes[1] == pytest.approx(SBH * 2 * (1 + 1 + 9 / 2))
    assert found.working_bytes[1] == pytest.approx(SBH * (34 + SCORES))


def test_parts_of_a_sequence_are_gathered_for_products() -> None:
    """A rank keeps an eighth of its input and of its gradient, and needs the rest for a moment."""
    settings = (Setting(tensor_parallel=8, sequence_parallel=on) for on in (False, True))
    whole, split = (table(setting).working_bytes[1] for setting in settings)
    assert whole == 0
    assert split == pytest.approx(2 * 2 * SBH * 7 / 8)


def test_recomputation_holds_one_layer_again() -> None:
    """Full recomputation needs a layer's whole set for a moment, selective its scores."""
    full, selective = (table(Setting(recompute=r)).working_bytes[1] for r in ("full", "selective"))
    assert full == pytest.approx(SBH * (34 + SCORES))
    assert selective == pytest.approx(SBH * SCORES)
    assert table(Setting()).working_bytes[1] == 0


def test_context_ranks_divide_activations() -> None:
    """Each of two ranks keeps half of the tokens' activations, scores against all keys included."""
    once, halved = (table(Setting(context_parallel=c)).saved_bytes for c in (1, 2))
    assert halved == pytest.approx(once / 2)


def test_the_stack_scales_counted_activations() -> None:
    """The allocator's factor applies to layers, and not to logits, whose bytes it states whole."""
    plain, scaled = (table(Setting(), activation_factor=f).saved_bytes for f in (1.0, 1.5))
    assert scaled[1] == pytest.approx(1.5 * plain[1])
    logits = 10.0 * SEQ * 51200
    assert scaled[2] - logits == pytest.approx(1.5 * (plain[2] - logits))


def test_logits_are_divided_by_tensor_ranks() -> None:
    """The head keeps its input twice and `logit_bytes` for each of its logits."""
    kept = table(Setting(tensor_parallel=4), logit_bytes=20.0).saved_bytes[2]
    assert kept == pytest.approx(2 * 2 * SBH + 20 * SEQ * 51200 / 4)


def test_a_gated_feed_forward_keeps_three_widths() -> None:
    """Gate, up and their product: 2 (g + 1) f bytes for each token (g = 2)."""
    plain, gated = (
        tiny_model(layer=tiny_layer(feed_forward=DenseMlp(intermediate_size=32, gated=g)))
        for g in (False, True)
    )
    difference = table(Setting(), gated).saved_bytes[1] - table(Setting(), plain).saved_bytes[1]
    assert difference == pytest.approx(SEQ * 2 * 32)


def test_experts_keep_the_tokens_sent_to_them() -> None:
    """Two experts per token keep two expert widths, and the tokens before and after them."""
    experts = MoeMlp(num_experts=4, experts_per_token=2, expert_intermediate_size=32, gated=False)
    extra = table(Setting(), tiny_model(layer=tiny_layer(feed_forward=experts))).saved_bytes[1]
    extra -= table(Setting(), tiny_model()).saved_bytes[1]
    router, second, routed = 2 * 4, 2 * 2 * 32, 2 * 2 * 2 * 8
    assert extra == pytest.approx(SEQ * (router + second + routed))


def test_fp32_keeps_twice_the_values() -> None:
    """Values double and masks stay: 34 becomes 2 x 32 + 2."""
    workload = tiny_workload(seq_len=SEQ, precision="fp32")
    stack = tiny_stack(flash_attention=False, dropout=True)
    found = unit_table(gpt3(), tiny_cluster(), workload, stack, Setting())
    scores = (2 * 2 * 2 + 1) * HEADS * SEQ / HIDDEN
    assert found.saved_bytes[1] == pytest.approx(SBH * (2 * 32 + 2 + scores))
    assert found.boundary_bytes[1] == pytest.approx(4 * SBH)


def test_all_parameters_are_held_by_one_device() -> None:
    """Without tensor and expert ranks the parts add up to the model."""
    model = tiny_model()
    assert table(Setting(), model).dense_parameters.sum() == model.num_parameters


def test_tensor_ranks_divide_matrices_and_not_norms() -> None:
    """Two norms of 8 stay whole; the matrices of a layer are 8 (24 + 8 + 32 + 32)."""
    found = table(Setting(tensor_parallel=2), tiny_model())
    assert found.dense_parameters[1] == 2 * 8 + 8 * (24 + 8 + 32 + 32) / 2


def test_expert_ranks_divide_experts_alone() -> None:
    """Four experts of 2 x 8 x 32 over two expert and two tensor ranks."""
    experts = MoeMlp(num_experts=4, experts_per_token=2, expert_intermediate_size=32, gated=False)
    model = tiny_model(layer=tiny_layer(feed_forward=experts))
    found = table(Setting(tensor_parallel=2, expert_parallel=2), model)
    assert found.expert_parameters[1] == 4 * 2 * 8 * 32 / (2 * 2)
    assert found.dense_parameters[1] == 2 * 8 + 8 * (24 + 8) / 2 + 8 * 4


def test_the_vocabulary_is_padded() -> None:
    """GPT-2's 50257 tokens over 4 ranks are held as 50688, the next multiple of 512."""
    model = tiny_model(embedding=Embedding(vocab_size=50257), head=Head(tied=True))
    found = table(Setting(tensor_parallel=4), model)
    assert found.dense_parameters[0] == 50688 * 8 / 4
    assert found.tied_parameters == 50688 * 8 / 4


def test_an_untied_head_repeats_nothing() -> None:
    """Only a tied table is held again by the head's device."""
    assert table(Setting(), tiny_model()).tied_parameters == 0


def test_units_hand_on_their_hidden_vectors() -> None:
    """Everything but the head sends 2 B T h, divided where the sequence is."""
    settings = product((1, 2), (False, True))
    sent = [
        table(Setting(tensor_parallel=t, sequence_parallel=s)).boundary_bytes.tolist()
        for t, s in settings
    ]
    whole = [2 * SBH, 2 * SBH, 0]
    assert sent == [whole, whole, whole, [SBH, SBH, 0]]


def test_decoder_layers_carry_the_encoders_output() -> None:
    """Between decoder layers two hidden vectors travel; to the head only one."""
    model = tiny_model(num_layers=4, encoder_layers=2)
    sent = table(Setting(), model).boundary_bytes / (2 * SEQ * 8)
    assert sent.tolist() == [1, 1, 1, 2, 1, 0]


def test_inputs_of_later_layers_travel_until_they_are_used() -> None:
    """Per-layer embeddings of width 4: three are left after the first of four layers."""
    model = tiny_model(
        layer=tiny_layer(input_embedding_size=4),
        embedding=Embedding(vocab_size=256, per_layer_size=4),
    )
    sent = table(Setting(), model).boundary_bytes / (2 * SEQ)
    assert sent.tolist() == [8 + 16, 8 + 12, 8 + 8, 8 + 4, 8, 0]
