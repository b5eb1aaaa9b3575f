"""The configs and the reports of misleading configs that lie beside the repository."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from apss_jax.importers.huggingface import model_from_config
from apss_jax.importers.load import list_models, load_model
from apss_jax.schema.layers import Attention
from apss_jax.schema.model import Model
from apss_jax.schema.weights import count

DATA = Path(__file__).parents[3] / "shared" / "data"
CONFIGS = DATA / "hf_configs"
pytestmark = pytest.mark.skipif(not CONFIGS.is_dir(), reason="no ../shared")

# The library knows more of these two than the copied config: the towers.
COMPLETED = {"gemma4-e2b", "llama-4-scout"}
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json")) if CONFIGS.is_dir() else []
TABLE = (
    list(csv.DictReader((CONFIGS / "params.csv").read_text().splitlines()))
    if CONFIGS.is_dir()
    else []
)


def _config(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())


def _case(name: str) -> dict[str, Any]:
    return json.loads((DATA / "cases" / f"{name}.json").read_text())


def _text_parameters(model: Model) -> int:
    return model.num_parameters - sum(tower.num_parameters for tower in model.towers)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_count_of_each_config(row: dict[str, str]) -> None:
    """Each config gets the true count where one is known."""
    true = row["true_parameter_count"] or row["recomputed_from_config"]
    model = model_from_config(_config(row["name"]))
    assert not true or model.num_parameters == int(true)


@pytest.mark.parametrize(
    ("name", "published"), [("gemma4-26b", 26e9), ("nemotron-h-8b", 8.1e9), ("gemma4-e2b", 5.1e9)]
)
def test_counts_that_were_published_rounded(name: str, published: float) -> None:
    """The library's model is within the rounding of what its makers say."""
    assert load_model(name).num_parameters == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_library_holds_the_same_model(name: str) -> None:
    """The shipped model is what importing the config gives."""
    shipped, imported = load_model(name), model_from_config(_config(name), name=name)
    if name in COMPLETED:
        assert shipped.layers == imported.layers and len(shipped.towers) > len(imported.towers)
    else:
        assert shipped.model_copy(update={"source": None}) == imported
    assert name in list_models()


def test_query_width_is_heads_times_head_size() -> None:
    """F01: Qwen3-4B's query projection is 4096 x 2560, not square."""
    model = load_model("qwen3-4b")
    weights = model.layer_sequence[0].weights(2560)
    query = next(w for w in weights if w.name == "query")
    assert query.num_parameters == _case("F01")["expected"]["q_proj_params"]


@pytest.mark.parametrize("name", ["F03", "F04"])
def test_explicit_head_size_is_authoritative(name: str) -> None:
    """F03, F04: a head size that hidden / heads does not give is taken as it stands."""
    shape, expected = _case(name)["model"], _case(name)["expected"]
    config = {
        "model_type": "gemma", "hidden_size": shape["hidden"], "head_dim": shape["head_dim"],
        "num_attention_heads": shape["heads"], "num_hidden_layers": 1, "intermediate_size": 8,
        "vocab_size": 8,
    }  # fmt: skip
    mixer = model_from_config(config).layer_sequence[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.score_width == (expected.get("q_width") or expected["v_width"])


def test_llama_4_text() -> None:
    """F09: both sizes of Llama 4, whose expert and dense widths have misleading names."""
    expected = _case("F09")["expected"]
    for size in ("scout", "maverick"):
        model = load_model(f"llama-4-{size}")
        assert _text_parameters(model) == expected["text_params"][size]
    assert load_model("llama-4-scout").num_parameters == expected["scout_total_with_vision"]


def test_every_name_of_an_expert_count() -> None:
    """F12: each spelling of the number of experts gives the same model."""
    config = _config("deepseek-v3")
    experts = config.pop("n_routed_experts")
    for name in _case("F12")["expected"]["accept"]:
        assert model_from_config({**config, name: experts}).num_parameters == 671_026_419_200


@pytest.mark.parametrize(
    ("case", "name"),
    [("F14", "qwen2.5-7b"), ("F16", "gemma-2-9b"), ("F18", "gpt-oss-120b"), ("F20", "llama-2-7b")],
)
def test_counts_of_reports(case: str, name: str) -> None:
    """F14, F16, F18, F20: the counts that reports say a right tool gives."""
    assert load_model(name).num_parameters == _case(case)["expected"]["params"]


def test_text_and_vision_apart() -> None:
    """F19: Gemma-3-4B with its tower; its text part has 64 tokens more than the text-only file."""
    expected, model = _case("F19")["expected"], load_model("gemma3-4b")
    assert model.num_parameters == expected["params"]
    assert _text_parameters(model) - 64 * 2560 == expected["text_only"]
    assert count(model.embedding_weights) == 262_208 * 2560
