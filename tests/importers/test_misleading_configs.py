"""Configs that are wrong, or that a careless reader takes for something else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.importers.huggingface import model_from_config
from apss_jax.schema.errors import InputError, Mistake
from apss_jax.schema.layers import Attention, MoeMlp

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def _mistake(config: object) -> Mistake:
    with pytest.raises(InputError) as caught:
        model_from_config(config, file="config.json")
    assert len(caught.value.mistakes) == 1
    return caught.value.mistakes[0]


def _attention(config: dict[str, Any]) -> Attention:
    mixer = model_from_config(config).layer_sequence[0].mixer
    assert isinstance(mixer, Attention)
    return mixer


def _without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", -1), ("hidden_size", 0), ("hidden_size", 64.0), ("hidden_size", "64"),
        ("hidden_size", True), ("hidden_size", 10**30), ("hidden_size", [64]),
        ("num_hidden_layers", 10**9), ("num_hidden_layers", 0), ("vocab_size", None),
        ("num_attention_heads", 6), ("num_key_value_heads", 3), ("num_key_value_heads", 0),
        ("intermediate_size", {}), ("head_dim", -8), ("tie_word_embeddings", "false"),
        ("attention_bias", 1), ("sliding_window", -5), ("max_position_embeddings", "long"),
        ("model_type", 7), ("layer_types", "full"), ("layer_types", ["full_attention"]),
        ("layer_types", ["full_attention", "telepathy"]),
    ],
)  # fmt: skip
def test_wrong_value(key: str, value: object) -> None:
    """A wrong value gives one error that names file, key, value, rule and remedy."""
    config = {**LLAMA, key: value}
    found = _mistake({**config, "model_type": "mistral"} if key == "sliding_window" else config)
    assert found.file == "config.json" and found.key == key
    assert found.rule and found.remedy


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_missing_size_is_named(name: str) -> None:
    """A size that decides the model is never assumed; the error says which one is missing."""
    found = _mistake(_without(LLAMA, name))
    assert found.key == name and found.rule == "is missing"


@pytest.mark.parametrize("value", [[], "llama", 3, None])
def test_not_an_object(value: object) -> None:
    """Anything but a JSON object is refused."""
    assert "object" in _mistake(value).rule


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "openelm", "model_dim": 1280, "num_transformer_layers": 16,
         "ffn_multipliers": [0.5, 4.0], "qkv_multipliers": [0.5, 1.0]},
        {"model_type": "mobilevit", "hidden_sizes": [144, 192, 240], "num_attention_heads": 4},
        {"model_type": "encoder-decoder", "encoder": {"model_type": "bert"}},
        {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_unknown_architecture_is_refused_by_name(config: dict[str, Any]) -> None:
    """What cannot be represented is refused in one sentence with the name of the type."""
    found = _mistake(config)
    assert config["model_type"] in found.rule and "cannot represent" in found.rule


def test_no_type_at_all() -> None:
    """Without a type the architecture's class name serves, then llama's fields, with a note."""
    named = {**_without(LLAMA, "model_type"), "architectures": ["Qwen2ForCausalLM"]}
    assert _attention(named).qkv_bias
    bare = model_from_config(_without(LLAMA, "model_type"))
    assert bare.notes and bare.num_parameters == model_from_config(LLAMA).num_parameters
    assert "hidden_size" in _mistake({"hidden_sizes": [144, 192]}).rule


@pytest.mark.parametrize("absent", [{}, {"num_key_value_heads": None}])
def test_absent_and_null_key_value_heads(absent: dict[str, Any]) -> None:
    """Without key/value heads every head has its own."""
    for family in ("llama", "mistral", "qwen2", "phi3"):
        config = {**_without(LLAMA, "num_key_value_heads"), "model_type": family, **absent}
        assert _attention(config).num_kv_heads == 4


def test_multi_query_by_type() -> None:
    """Falcon and StarCoder have one key/value head when the config does not say."""
    falcon = {**_without(LLAMA, "num_key_value_heads"), "model_type": "falcon"}
    starcoder = {"model_type": "gpt_bigcode", "n_embd": 64, "n_layer": 2, "n_head": 4,
                 "vocab_size": 100}  # fmt: skip
    assert _attention(falcon).num_kv_heads == _attention(starcoder).num_kv_heads == 1


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3_text"])
def test_experts_are_never_read_as_dense(family: str) -> None:
    """A dense family with an expert width or count stops instead of ignoring it."""
    for extra in ({"moe_intermediate_size": 32}, {"num_experts": 8}, {"expert_count": 8}):
        found = _mistake({**LLAMA, "model_type": family, **extra})
        assert found.key == next(iter(extra)) and family in found.rule


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "mixtral"])
def test_unknown_name_of_the_expert_count_is_said(family: str) -> None:
    """The error repeats the fields that seem to speak of experts."""
    config = {**LLAMA, "model_type": family, "moe_intermediate_size": 32, "q_lora_rank": None,
              "kv_lora_rank": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "how_many_experts": 8,
              "num_experts_per_tok": 2}  # fmt: skip
    found = _mistake(config)
    assert "how_many_experts" in found.rule and "n_routed_experts" in found.key


def test_two_names_that_disagree() -> None:
    """Two spellings of one quantity with different values are an error."""
    found = _mistake({**MIXTRAL, "experts_per_token": 4})
    assert "contradicts num_experts_per_tok" in found.rule


def test_more_experts_per_token_than_experts() -> None:
    """A token cannot pass more experts than there are."""
    assert "at most the 4" in _mistake({**MIXTRAL, "num_experts_per_tok": 5}).rule


def test_additional_fields_are_fine() -> None:
    """Quantization, rope and bookkeeping fields change nothing."""
    extra = {"quantization_config": {"quant_method": "fp8"}, "_meta": {"a": 1}, "rope_theta": 1e6,
             "rope_scaling": {"type": "yarn"}, "bos_token_id": 1, "my_own": [1, 2]}  # fmt: skip
    assert model_from_config({**LLAMA, **extra}) == model_from_config(LLAMA)


def test_nested_language_model_of_an_unknown_wrapper() -> None:
    """An unknown wrapper of a known language model is read as that, and says so."""
    wrapped = {"model_type": "some_vl", "llm_config": LLAMA, "vision_config": {"hidden_size": 8}}
    model = model_from_config(wrapped)
    assert model.num_parameters == model_from_config(LLAMA).num_parameters
    assert "only its language model" in model.notes[0]


def test_experts_every_other_layer() -> None:
    """Sparse and dense layers alternate as the config says."""
    config = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
              "moe_intermediate_size": 8, "decoder_sparse_step": 2,
              "num_hidden_layers": 4}  # fmt: skip
    kinds = [isinstance(la.feed_forward, MoeMlp) for la in model_from_config(config).layer_sequence]
    assert kinds == [False, True, False, True]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(), st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip


TYPES = ["llama", "mixtral", "gpt2", "bert", "t5", "gemma3", "gemma4", "deepseek_v3", "nemotron_h",
         "llama4", "falcon", "gpt_neo"]  # fmt: skip
KEYS = sorted({*MIXTRAL, "text_config", "layer_types", "head_dim", "attention_types"})


@given(family=st.sampled_from(TYPES), junk=st.dictionaries(st.sampled_from(KEYS), JUNK))
def test_junk_is_never_a_traceback(family: str, junk: dict[str, Any]) -> None:
    """Whatever stands in the fields, the answer is a model or an `InputError`."""
    try:
        model = model_from_config({**MIXTRAL, **junk, "model_type": family})
    except InputError as error:
        assert str(error)
    else:
        assert model.num_parameters > 0
