"""The number of parameters of real models, and of small ones with every option of a family.

`known_counts.json` holds configs with the count that was published for them, each with its source.
`transformers_counts.json` holds small configs with the number of parameters that the classes of
transformers 5.24.0 create on the meta device (the bias that balances experts added, which they
keep as a buffer).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from apss_jax.importers.huggingface import FAMILIES, model_from_config
from apss_jax.schema.model import Model

HERE = Path(__file__).parent
KNOWN = json.loads((HERE / "known_counts.json").read_text())
SMALL = json.loads((HERE / "transformers_counts.json").read_text())
REMOTE = {"baichuan", "chatglm", "deepseek", "internlm2", "kimi_k2", "qwen"}  # own code on the Hub
OLD_NAMES = {"RefinedWeb", "RefinedWebModel"}  # falcon, before transformers adopted it


def _published(row: dict[str, Any], model: Model) -> int:
    """Returns our count in the terms of the published one."""
    assert model.embedding is not None and model.hidden_size is not None
    prediction = model.num_mtp_parameters if row.get("prediction_included") else 0
    ends = row.get("copies_of_ends", 0) * model.embedding.vocab_size * model.hidden_size
    return model.num_parameters + prediction + ends


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row["name"])
def test_real_model(row: dict[str, Any]) -> None:
    """A published model has exactly the published number of parameters."""
    assert _published(row, model_from_config(row["config"])) == row["count"]


@pytest.mark.parametrize("row", SMALL, ids=lambda row: row["config"]["model_type"])
def test_option_of_a_family(row: dict[str, Any]) -> None:
    """A small config has as many parameters as the class of transformers that it names."""
    assert model_from_config(row["config"]).num_parameters == row["count"]


def test_every_family_is_counted() -> None:
    """Each supported model type has a config whose count somebody else determined."""
    small = {row["config"]["model_type"] for row in SMALL}
    known = {row["config"]["model_type"] for row in KNOWN}
    assert set(FAMILIES) - small - known - OLD_NAMES <= REMOTE


def test_a_wrong_count_would_be_seen() -> None:
    """The comparison fails for a config with one more token."""
    row = next(row for row in KNOWN if row["name"] == "llama-3.2-3b")
    config = {**row["config"], "vocab_size": row["config"]["vocab_size"] + 1}
    assert _published(row, model_from_config(config)) == row["count"] + 3072


def test_t5_with_its_own_head() -> None:
    """Untied T5 has an output matrix, as its checkpoints do; newer classes always tie it."""
    row = next(row for row in KNOWN if row["name"] == "t5-v1.1-small")
    tied = model_from_config({**row["config"], "tie_word_embeddings": True})
    assert row["count"] - tied.num_parameters == 32128 * 512


def test_prediction_layers_are_counted_apart() -> None:
    """DeepSeek-V3's prediction module is not in the count, and shares embedding and head."""
    row = next(row for row in KNOWN if row["name"] == "deepseek-v3")
    model = model_from_config(row["config"])
    without = model_from_config({**row["config"], "num_nextn_predict_layers": 0})
    assert model.num_parameters == without.num_parameters == row["count"]
    queries = 7168 * 1536 + 1536 + 1536 * 128 * 192
    keys_values = 7168 * (512 + 64) + 512 + 512 * 128 * (128 + 128)
    attention = queries + keys_values + 128 * 128 * 7168
    experts = (256 + 1) * 3 * 7168 * 2048 + 7168 * 256 + 256
    block = attention + experts + 2 * 7168
    assert model.num_mtp_parameters == block + 2 * 7168 * 7168 + 3 * 7168
