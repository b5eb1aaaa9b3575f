"""Class F of the reported cases: configurations that mislead a reader."""

from typing import Any

import pytest
import yaml

from apss_jax.exporters.maxtext import write_maxtext
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.huggingface import model_from_config
from apss_jax.importers.load import load_model
from apss_jax.legality.launch import Launch
from apss_jax.planning.estimate import plan_of, stages_of
from apss_jax.schema.errors import InputError
from apss_jax.schema.layers import Attention, Layer
from apss_jax.schema.layout import Layout
from apss_jax.schema.weights import count

PLAIN: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100,
}  # fmt: skip


def first_layer(config: dict[str, Any]) -> Layer:
    """Returns the first layer of a config."""
    return model_from_config(config).layer_sequence[0]


def attention(config: dict[str, Any]) -> Attention:
    """Returns the attention of a config's first layer."""
    mixer = first_layer(config).mixer
    assert isinstance(mixer, Attention)
    return mixer


def refusal(config: dict[str, Any]) -> str:
    """Returns the message by which a config is refused."""
    with pytest.raises(InputError) as caught:
        model_from_config(config, file="config.json")
    return str(caught.value)


def test_a_query_projection_that_is_not_square() -> None:
    """F01: Qwen3-4B has 4096 x 2560 values in it, not 2560 x 2560."""
    model = load_model("qwen3-4b")
    query = next(w for w in model.layer_sequence[0].weights(2560) if w.name == "query")
    assert query.num_parameters == 10_485_760


@pytest.mark.parametrize(
    ("case", "hidden", "heads", "width"), [("F03", 640, 4, 1024), ("F04", 3072, 16, 4096)]
)
def test_a_head_size_beyond_hidden(case: str, hidden: int, heads: int, width: int) -> None:
    """F03, F04: an explicit head size of 256 is taken as it stands."""
    config = {
        **PLAIN, "model_type": "gemma", "hidden_size": hidden, "num_attention_heads": heads,
        "head_dim": 256,
    }  # fmt: skip
    assert attention(config).score_width == width


def test_nested_and_missing_hidden_sizes() -> None:
    """F06: a nested text config is read, another shape is refused with the field that lacks."""
    nested = {"model_type": "gemma3", "text_config": {**PLAIN, "model_type": "gemma3_text"}}
    assert model_from_config(nested).hidden_size == 64
    assert "hidden_size" in refusal({"hidden_sizes": [144, 192, 240]})
    assert "mobilevit" in refusal({"model_type": "mobilevit", "hidden_sizes": [144, 192]})


@pytest.mark.parametrize("absent", [{}, {"num_key_value_heads": None}])
def test_key_value_heads_that_are_not_said(absent: dict[str, Any]) -> None:
    """F08: null and missing both mean one for every head."""
    assert attention({**PLAIN, "model_type": "qwen2", **absent}).num_kv_heads == 4


def test_llama_4() -> None:
    """F09: expert and dense widths have each other's names, and a shared expert is implied."""
    for name, text, total in (
        ("llama-4-scout", 107_769_861_120, 108_641_793_536),
        ("llama-4-maverick", 400_711_848_960, 401_583_781_376),
    ):
        model = load_model(name)
        assert model.num_parameters == total
        assert total - sum(tower.num_parameters for tower in model.towers) == text


def test_openelm_is_refused_by_name() -> None:
    """F10: widths that differ by layer are no KeyError."""
    config = {"model_type": "openelm", "model_dim": 1280, "num_transformer_layers": 16}
    assert "openelm" in refusal(config)


ROUTED = {
    **PLAIN, "model_type": "qwen3_moe", "moe_intermediate_size": 32, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["n_routed_experts", "num_routed_experts", "num_experts", "num_local_experts"]
)
def test_names_of_an_expert_count(name: str) -> None:
    """F12: each of the four is read."""
    part = first_layer({**ROUTED, name: 8}).feed_forward
    assert part is not None and part.kind == "moe"


def test_an_unknown_name_of_an_expert_count() -> None:
    """F12: an expert width without a count that is known stops, instead of a dense model."""
    assert "expert" in refusal({**ROUTED, "how_many_experts": 8})


@pytest.mark.parametrize(
    ("case", "name", "parameters"),
    [
        ("F14", "qwen2.5-7b", 7_615_616_512),
        ("F16", "gemma-2-9b", 9_241_705_984),
        ("F18", "gpt-oss-120b", 116_829_156_672),
        ("F19", "gemma3-4b", 4_300_079_472),
        ("F20", "llama-2-7b", 6_738_415_616),
    ],
)
def test_counts(case: str, name: str, parameters: int) -> None:
    """F14, F16, F18, F19, F20: untied ends, true layers, biases and sinks, towers, no buffers."""
    assert load_model(name).num_parameters == parameters


def test_maxtext_counts_pairs_of_layers() -> None:
    """F16: 42 layers of Gemma 2 are 21 there, whether its file or its sizes are named."""
    model = load_model("gemma-2-9b")
    assert model.num_layers == 42
    assert count(model.embedding_weights) == 256_000 * 3584
    plan = plan_of(Layout(1, 1, 8), 8)
    stages = stages_of(plan, [42])
    placed = tuple(s.model_copy(update={"devices": tuple(range(8))}) for s in stages)
    whole = plan.model_copy(update={"stages": placed, "seq_len": 4096, "model": "gemma-2-9b"})
    cluster = load_cluster("1x8xH100")
    named = write_maxtext(Launch(whole, model, cluster)).text
    assert yaml.safe_load(named)["model_name"] == "gemma2-9b"
    assert "42 layers are 21 here" in named
    other = whole.model_copy(update={"model": "mine"})
    sizes = yaml.safe_load(write_maxtext(Launch(other, model, cluster)).text)
    assert sizes["base_num_decoder_layers"] == 21
