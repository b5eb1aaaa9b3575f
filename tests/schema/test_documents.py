"""Files in and out: strict JSON, bounded size, errors that name the remedy, atomic writing."""

import json
from pathlib import Path
from typing import Any

import pytest

from apss_jax.schema.document import MAX_FILE_BYTES, read_document, read_json, write_document
from apss_jax.schema.errors import MAX_SHOWN, InputError, Mistake, mistake
from apss_jax.schema.model import Model

LAYER = {"mixer": {"kind": "attention", "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}}
MODEL: dict[str, Any] = {
    "schema": "apss.model/1", "name": "tiny", "hidden_size": 8, "embedding": {"vocab_size": 10},
    "layers": [{"repeat": 3, "layer": LAYER}],
}  # fmt: skip


def _mistakes(action: Any, *args: Any, **options: Any) -> tuple[Mistake, ...]:
    with pytest.raises(InputError) as caught:
        action(*args, **options)
    return caught.value.mistakes


def _file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "input.json"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b'{"a": NaN}', "NaN"), (b'{"a": -Infinity}', "Infinity"), (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": {"b": 1, "b": 1}}', "twice"), (b'{"a": 1', "line 1, column"), (b"", "not JSON"),
        (b"[" * 100_000, "nested"), (b'{"a": ' * 50_000, "nested"), (b"\xff\xfe{}", "UTF-8"),
        (b"{'a': 1}", "not JSON"),
    ],
)  # fmt: skip
def test_what_is_not_strict_json(tmp_path: Path, content: bytes, word: str) -> None:
    """Each defect gives one error that names the file and the defect."""
    path = _file(tmp_path, content)
    (found,) = _mistakes(read_json, path)
    assert found.file == str(path) and word in found.sentence()


def test_byte_order_mark_is_fine(tmp_path: Path) -> None:
    """Editors that write a byte order mark do no harm."""
    assert read_json(_file(tmp_path, b'\xef\xbb\xbf{"a": 1}')) == {"a": 1}


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    """A missing file, a directory and an impossible name are said as such."""
    words = {tmp_path / "no.json": "No such file", tmp_path: "is a directory", Path("a\0b"): "null"}
    for path, word in words.items():
        assert word in _mistakes(read_json, path)[0].rule


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    """A file above the limit is refused by its size alone."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "larger than 64 MiB" in _mistakes(read_json, path)[0].rule


@pytest.mark.parametrize(
    ("change", "key", "rule"),
    [
        ({"hiden_size": 8}, "hiden_size", "is not a known key"),
        ({"layers": [{"repeat": 0, "layer": LAYER}]}, "layers.0.repeat", "greater than 0"),
        ({"layers": [{"repeat": 10**12, "layer": LAYER}]}, "layers.0.repeat", "less than"),
        ({"layers": [{"repeat": 6000, "layer": LAYER}] * 2}, "(whole file)", "at most 10000"),
        ({"hidden_size": 8.5}, "hidden_size", "integer"),
        ({"hidden_size": "8"}, "hidden_size", "integer"),
        ({"hidden_size": True}, "hidden_size", "integer"),
        ({"embedding": {}}, "embedding.vocab_size", "is missing"),
        ({"layers": [{"layer": {"mixer": {"kind": "magic"}}}]}, "layers.0.layer.mixer", "magic"),
        ({"schema": "apss.plan/1"}, "schema", "apss.model/1"),
        ({"table": {"rows": []}}, "(whole file)", "either"),
        ({"encoder_layers": 4}, "(whole file)", "encoder_layers"),
    ],
)  # fmt: skip
def test_wrong_document(change: dict[str, Any], key: str, rule: str) -> None:
    """A wrong key or value of a document is named with the rule it breaks."""
    (found,) = _mistakes(Model.from_json, {**MODEL, **change}, file="m.json")
    assert found.file == "m.json" and found.key == key and rule in found.sentence()
    assert found.remedy


@pytest.mark.parametrize(
    ("schema", "rule", "remedy"),
    [
        ("apss.model/2", "newer than this version", "Update apss-jax, or write the file again"),
        ("apss.model/10", "newer than this version", "Update apss-jax"),
        ("apss.model/0", "older than this version", "Use the version that wrote it, or write"),
        ("apss.models/2", "must be 'apss.model/1'", "Give a file that begins"),
        ("apss.model/x", "must be 'apss.model/1'", "Give a file that begins"),
        (2, "must be 'apss.model/1'", "Give a file that begins"),
    ],
)
def test_another_version_says_which_way_it_is_off(schema: Any, rule: str, remedy: str) -> None:
    """A file of a newer or older version is named as such; one of another kind is not."""
    (found,) = _mistakes(Model.from_json, {**MODEL, "schema": schema})
    assert rule in found.rule and found.remedy.startswith(remedy)
    assert ("newer" in rule or "older" in rule) == ("this version" in found.rule)


def test_every_mistake_is_told_at_once() -> None:
    """A document with three wrong keys gives three mistakes, one line each."""
    with pytest.raises(InputError) as caught:
        Model.from_json({**MODEL, "a": 1, "b": 2, "hidden_size": 0})
    assert len(caught.value.mistakes) == len(str(caught.value).splitlines()) == 3


def test_error_document() -> None:
    """The error as JSON has the five promised fields, and a long value is shortened."""
    error = mistake("key", "x" * 1000, "is long", "Shorten it", file="f.json")
    document = json.loads(json.dumps(error.document()))
    assert document["schema"] == "apss.error/1"
    assert list(document["errors"][0]) == ["file", "key", "value", "rule", "remedy"]
    assert len(document["errors"][0]["value"]) == MAX_SHOWN


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    """A written document reads back equal, and nothing else is left in the folder."""
    path = tmp_path / "new" / "model.json"
    model = Model.from_json(MODEL)
    write_document(model, path)
    write_document(model, path)
    assert read_document(Model, path) == model
    assert [p.name for p in path.parent.iterdir()] == ["model.json"]


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the last step fails, the old file stands and the temporary one is gone."""
    path = tmp_path / "model.json"
    path.write_text("old")
    monkeypatch.setattr("os.replace", _fail)
    with pytest.raises(OSError, match="disk"):
        write_document(Model.from_json(MODEL), path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["model.json"]


def _fail(*_: object) -> None:
    raise OSError("disk")
