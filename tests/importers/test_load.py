"""Models by name and by path."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apss_jax.importers.load import MODELS, list_models, load_model
from apss_jax.schema.errors import InputError
from apss_jax.schema.model import Model

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
REQUIRED = {"gpt2", "llama-3.1-8b", "llama-3.1-405b", "gpt3-175b", "gpt2-345m-amp", "transgan-amp"}


def _write(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))
    return path


def _sentence(name_or_path: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_model(name_or_path)
    return str(caught.value)


@pytest.mark.parametrize("name", list_models())
def test_library_model(name: str) -> None:
    """Each shipped model is named like its file, has a source, and survives a round trip."""
    model = load_model(name)
    assert model.name == name and model.source
    assert model.num_parameters > 0 and model.num_layers > 0
    assert Model.from_json(json.loads(json.dumps(model.to_json()))) == model


def test_library_has_what_is_promised() -> None:
    """At least 27 models, among them those that the documents name."""
    assert len(list_models()) >= 27 and set(list_models()) >= REQUIRED


def test_names_ignore_case() -> None:
    """A library name may be written in any case."""
    assert load_model("LLaMA-3.1-8B").num_parameters == 8_030_261_248


def test_unknown_name_suggests_close_ones() -> None:
    """A misspelt name gets the nearest names and the folder that was searched."""
    sentence = _sentence("lama-3.1-8b")
    assert "llama-3.1-8b" in sentence and str(MODELS) in sentence


@pytest.mark.parametrize("name", ["", " ", "no such model", 3, None, ["gpt2"]])
def test_what_is_no_name(name: object) -> None:
    """Anything else is one sentence, never a traceback."""
    assert "--model" in _sentence(name)


def test_path_to_a_config(tmp_path: Path) -> None:
    """A config file is read wherever it lies, and names its model by file or folder."""
    file = _write(tmp_path / "small.json", GPT2)
    folder = _write(tmp_path / "my-model" / "config.json", GPT2).parent
    models = [load_model(file), load_model(str(file)), load_model(folder)]
    assert [m.name for m in models] == ["small", "small", "my-model"]
    assert {m.num_parameters for m in models} == {124_439_808}


def test_path_to_our_own_format(tmp_path: Path) -> None:
    """A file with a schema is our model file; another schema is refused."""
    model = load_model("gpt2")
    assert load_model(_write(tmp_path / "ours.json", model.to_json())) == model
    wrong = _write(tmp_path / "other.json", {"schema": "apss.plan/1"})
    assert "apss.model/1" in _sentence(wrong)


def test_a_path_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gpt2.json` and `./gpt2` are files; `gpt2` is the library's, even beside such a file."""
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "gpt2", {**GPT2, "n_layer": 1})
    assert load_model("gpt2").num_layers == 12
    assert load_model("./gpt2").num_layers == 1
    assert "gpt2.json" in _sentence("gpt2.json")


def test_directories_and_missing_files(tmp_path: Path) -> None:
    """A folder without a config, and a path to nothing, are named in the error."""
    assert str(tmp_path) in _sentence(tmp_path)
    assert "No such file" in _sentence(tmp_path / "none.json")


def test_amp_pair() -> None:
    """AMP's GPT-2 and its TransGAN as a table, in AMP's own layer order and times."""
    gpt2 = load_model("gpt2-345m-amp")
    per_layer = 12 * 1024 * 1024 + 13 * 1024
    assert gpt2.num_parameters == 24 * per_layer + (52_256 + 1024) * 1024 + 2 * 1024
    table = load_model("transgan-amp").table
    assert table is not None and len(table.rows) == 56 and table.tensor_comm_included
    big = [
        i for i, row in enumerate(table.rows) if row.num_parameters == per_layer - 4 * 1024 + 1157
    ]
    assert big == list(range(3, 15))
    assert all(set(row.forward_s["V100-SXM2-16GB"]) == {"1", "2", "4"} for row in table.rows)


def test_loading_imports_no_jax() -> None:
    """Reading a model stays cheap: nothing of JAX or numba is imported."""
    code = (
        "import sys; from apss_jax.importers.load import load_model; load_model('gpt2');"
        "sys.exit(any(name in sys.modules for name in ('jax', 'numba', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
