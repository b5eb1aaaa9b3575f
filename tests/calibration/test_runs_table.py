"""Runs tables: what is read, and what a wrong line is answered."""

from pathlib import Path

import pytest
from run_tables import write_table

from apss_jax.schema.errors import InputError, Mistake
from apss_jax.schema.runs import MAX_FILE_BYTES, read_runs

MINIMUM = "gpu_model,num_gpus,num_layers,hidden\n"


def _refused(path: Path) -> Mistake:
    with pytest.raises(InputError) as caught:
        read_runs(path)
    return caught.value.mistakes[0]


def _refused_text(folder: Path, text: str | bytes) -> Mistake:
    path = folder / "runs.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return _refused(path)


def test_one_line_with_the_least_columns_is_a_table(tmp_path: Path) -> None:
    """Four columns and one line are enough; every other field is unknown."""
    path = tmp_path / "runs.csv"
    path.write_text(MINIMUM + "H100,8,32,4096\n")
    (run,) = read_runs(path)
    assert (run.gpu_model, run.num_gpus, run.num_layers, run.hidden) == ("H100", 8, 32, 4096)
    assert run.step_time_s is None
    assert run.source_name == "runs"


def test_blank_fields_are_unknown_and_names_are_sources(tmp_path: Path) -> None:
    """A blank is None; a source is the run's name without its last number."""
    path = write_table(
        tmp_path, {"tp": None, "run_id": "vtrain-s-0012", "schedule": "1f1b-interleaved"}
    )
    (run,) = read_runs(path)
    assert run.tp is None
    assert run.source_name == "vtrain-s"
    assert run.schedule == "interleaved_1f1b"


def test_boundaries_are_numbers(tmp_path: Path) -> None:
    """Stage boundaries are read as numbers."""
    (run,) = read_runs(write_table(tmp_path, {"stage_boundaries": "0 14 32"}))
    assert run.stage_boundaries == (0, 14, 32)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("num_gpus", "many", "valid integer"),
        ("num_gpus", "-8", "greater than 0"),
        ("num_gpus", "0", "greater than 0"),
        ("num_gpus", "99999999", "less than or equal"),
        ("tp", "1.5", "valid integer"),
        ("step_time_s", "nan", "finite"),
        ("step_time_s", "-1", "greater than 0"),
        ("zero_stage", "4", "less than or equal to 3"),
        ("recompute", "half", "'none', 'selective' or 'full'"),
        ("schedule", "zigzag", "'gpipe', '1f1b' or 'interleaved_1f1b'"),
        ("oom", "2", "less than or equal to 1"),
        ("stage_boundaries", "0 a 32", "valid integer"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, field: str, value: str, rule: str) -> None:
    """The message holds file, line, column, value, rule and remedy."""
    mistake = _refused(write_table(tmp_path, {}, {field: value}))
    assert mistake.file is not None
    assert mistake.key == f"line 3, column '{field}'"
    assert mistake.value == value
    assert rule in mistake.rule
    assert mistake.remedy


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    """Without the GPU count there is no table."""
    mistake = _refused_text(tmp_path, "gpu_model,num_layers,hidden\nH100,32,4096\n")
    assert mistake.key == "column 'num_gpus'"
    assert mistake.rule == "is missing"


@pytest.mark.parametrize(
    ("header", "rule"),
    [("tensor_parallel", "is not a column"), ("hidden", "stands twice")],
)
def test_a_wrong_column_is_named(tmp_path: Path, header: str, rule: str) -> None:
    """A misspelt column would silently be ignored, a double one hides a value."""
    text = f"gpu_model,num_gpus,num_layers,hidden,{header}\nH100,8,32,4096,2\n"
    mistake = _refused_text(tmp_path, text)
    assert header in mistake.key
    assert rule in mistake.rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "is empty"),
        (MINIMUM, "has no runs"),
        (MINIMUM + "H100,8,32\n", "has 3 fields, but the header has 4"),
        (MINIMUM + 'H100,8,32,"4096\n', "unexpected end of data"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (MINIMUM + "H100,8,32,4096" + "0" * 200_000 + "\n", "field larger than field limit"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str | bytes, rule: str) -> None:
    """Empty, cut off, uneven or foreign files get one sentence."""
    assert rule in _refused_text(tmp_path, text).rule


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder and a missing file are told apart."""
    assert _refused(tmp_path).rule == "is a directory"
    assert "No such file" in _refused(tmp_path / "none.csv").rule


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """The size is looked at before the content."""
    path = tmp_path / "runs.csv"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "larger than" in _refused(path).rule


def test_every_wrong_line_is_told_up_to_a_limit(tmp_path: Path) -> None:
    """Thirty wrong lines give the first twenty messages."""
    path = write_table(tmp_path, *[{"tp": "x"}] * 30)
    with pytest.raises(InputError) as caught:
        read_runs(path)
    assert len(caught.value.mistakes) == 20
