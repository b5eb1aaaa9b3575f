"""What the parts of a layer say of their weights: counts, shards, and the share of tokens."""

import pytest

from apss_jax.importers.load import list_models, load_model
from apss_jax.schema.layers import Attention, DenseMlp, LatentAttention, Layer, MoeMlp
from apss_jax.schema.model import Embedding, Head, LayerRun, Model
from apss_jax.schema.weights import Weight, count

HIDDEN = 64
ATTENTION = Attention(num_heads=4, num_kv_heads=2, head_dim=16)


def _named(weights: list[Weight], name: str) -> Weight:
    return next(w for w in weights if w.name == name)


def _active(weights: list[Weight]) -> float:
    """Returns the parameters that an average token is multiplied with."""
    return sum(w.num_parameters * w.multiplied_fraction for w in weights)


def test_grouped_attention() -> None:
    """Four query heads and two key/value heads of 16 on a hidden size of 64."""
    assert count(ATTENTION.weights(HIDDEN)) == 64 * 64 + 2 * 64 * 32 + 64 * 64
    assert ATTENTION.score_width == 64 and ATTENTION.kv_width == 2 * 32
    assert ATTENTION.tensor_divisor == (4, 2)


def test_biases_follow_the_cut() -> None:
    """The bias of a column-cut matrix is cut with it; that of a row-cut one is not."""
    biased = Attention(num_heads=4, num_kv_heads=4, head_dim=16, qkv_bias=True, output_bias=True)
    weights = biased.weights(HIDDEN)
    assert _named(weights, "query.bias").shard == "column"
    assert _named(weights, "output").shard == "row"
    assert _named(weights, "output.bias").shard == "replicated"
    assert count(weights) == 4 * 64 * 64 + 4 * 64


def test_output_gate_doubles_the_query_only() -> None:
    """A gate on the attention's output doubles the query projection, not the output's input."""
    gated = Attention(num_heads=4, num_kv_heads=2, head_dim=16, output_gate=True)
    extra = count(gated.weights(HIDDEN)) - count(ATTENTION.weights(HIDDEN))
    assert extra == 64 * 64


def test_experts_share_the_tokens() -> None:
    """All experts are held, but a token passes only the chosen ones, router and shared part."""
    moe = MoeMlp(num_experts=8, experts_per_token=2, expert_intermediate_size=32,
                 shared_intermediate_size=16)  # fmt: skip
    weights = moe.weights(HIDDEN)
    expert, router, shared = 3 * 64 * 32, 64 * 8, 3 * 64 * 16
    assert count(weights) == router + 8 * expert + shared
    assert _active(weights) == pytest.approx(router + 2 * expert + shared)
    assert count(w for w in weights if w.is_expert) == 8 * expert


def test_latent_experts_work_in_the_latent_width() -> None:
    """Experts between two projections have matrices of the latent width."""
    moe = MoeMlp(num_experts=4, experts_per_token=1, expert_intermediate_size=32, gated=False,
                 latent_size=16)  # fmt: skip
    assert count(moe.weights(HIDDEN)) == 64 * 4 + 2 * 64 * 16 + 4 * 2 * 16 * 32


def test_latent_attention_without_query_rank() -> None:
    """A full query projection replaces the two low-rank ones and their norm."""
    shape = {"num_heads": 2, "kv_rank": 8, "nope_head_dim": 4, "rope_head_dim": 2,
             "value_head_dim": 4}  # fmt: skip
    full = count(LatentAttention(query_rank=None, **shape).weights(HIDDEN))
    low = count(LatentAttention(query_rank=6, **shape).weights(HIDDEN))
    assert full - low == 64 * 12 - (64 * 6 + 6 + 6 * 12)


def test_vectors_and_tables_multiply_nothing() -> None:
    """Norms, biases and look-up tables cost no matrix product."""
    layer = Layer(mixer=ATTENTION, feed_forward=DenseMlp(intermediate_size=8, bias=True))
    small = [w for w in layer.weights(HIDDEN) if w.in_features == 1]
    table = Embedding(vocab_size=100, num_positions=8).weights(HIDDEN, 2)
    assert small and _active(small) == _active(table) == 0


def test_tied_head_is_counted_once() -> None:
    """Tying removes exactly one matrix of vocabulary x hidden size."""
    run = LayerRun(repeat=2, layer=Layer(mixer=ATTENTION))
    common = {"name": "m", "hidden_size": HIDDEN, "embedding": Embedding(vocab_size=100)}
    tied = Model(**common, layers=(run,), head=Head(tied=True))
    assert Model(**common, layers=(run,)).num_parameters - tied.num_parameters == 100 * HIDDEN


@pytest.mark.parametrize("name", list_models())
def test_model_is_the_sum_of_its_parts(name: str) -> None:
    """What embedding, layers, head and towers list adds up to the model's count."""
    model = load_model(name)
    if model.table:
        assert model.num_parameters == sum(row.num_parameters for row in model.table.rows)
        return
    layers = sum(count(layer.weights(model.hidden_size or 0)) for layer in model.layer_sequence)
    ends = count(model.embedding_weights) + count(model.head_weights)
    towers = sum(tower.num_parameters for tower in model.towers)
    assert model.num_parameters == layers + ends + towers
    assert model.num_layers == len(model.layer_sequence)


@pytest.mark.parametrize(
    ("name", "active_b"),
    # As the makers state them; Qwen3-30B-A3B as in a table derived from its files (3,352,844,924).
    [("qwen3-30b-a3b", 3.353), ("qwen3-235b-a22b", 22), ("deepseek-v3", 37), ("mixtral-8x7b", 12.9),
     ("llama-3.1-8b", 8.03)],
)  # fmt: skip
def test_active_parameters(name: str, active_b: float) -> None:
    """The matrices a token passes are what the makers call active parameters, table included."""
    model = load_model(name)
    parts = [w for la in model.layer_sequence for w in la.weights(model.hidden_size or 0)]
    used = _active([*parts, *model.head_weights]) + model.embedding_weights[0].num_parameters
    assert used == pytest.approx(active_b * 1e9, rel=0.02)
