"""The runs table: training runs that somebody measured, one line each, read from CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field, PositiveFloat, ValidationError

from apss_jax.schema.cluster import MAX_DEVICES
from apss_jax.schema.document import MAX_MISTAKES, Part
from apss_jax.schema.errors import InputError, Mistake, mistake, shorten
from apss_jax.schema.plan import Recompute, ScheduleName
from apss_jax.schema.weights import MAX_LAYERS, Size

# Measured runs that others published; the shipped constants were fitted on them.
PUBLISHED_RUNS: Final = Path(__file__).parents[1] / "library" / "references" / "published_runs.csv"
MAX_ROWS: Final = 200_000
MAX_FILE_BYTES: Final = 64 * 2**20
REQUIRED: Final = ("gpu_model", "num_gpus", "num_layers", "hidden")
UNNUMBERED: Final = re.compile(r"-\d+$")
SCHEDULE_WORDS: Final = {"1f1b-interleaved": "interleaved_1f1b"}
REMEDY_COLUMN: Final = "Name the columns as those of the published table; leave out what is unknown"


def _schedule(text: object) -> object:
    return SCHEDULE_WORDS.get(text, text) if isinstance(text, str) else text


def _boundaries(text: object) -> object:
    return text.split() if isinstance(text, str) else text


Switch = Annotated[int, Field(ge=0, le=1)]


class Run(Part):
    """One measured run; None is a blank field."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)

    run_id: str | None = None
    source: str | None = None
    table: str | None = None
    gpu_model: str | None = None
    gpu_mem_gib: PositiveFloat | None = None
    gpus_per_node: Annotated[int, Field(gt=0, le=MAX_DEVICES)] | None = None
    num_gpus: Annotated[int, Field(gt=0, le=MAX_DEVICES)] | None = None
    interconnect: str | None = None
    model_name: str | None = None
    num_layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)] | None = None
    hidden: Size | None = None
    ffn_hidden: Size | None = None
    num_heads: Size | None = None
    num_kv_heads: Size | None = None
    vocab: Size | None = None
    seq_len: Size | None = None
    num_experts: Size | None = None
    topk: Size | None = None
    global_batch: Size | None = None
    micro_batch: Size | None = None
    dp: Size | None = None
    tp: Size | None = None
    pp: Size | None = None
    cp: Size | None = None
    ep: Size | None = None
    vpp: Size | None = None
    sequence_parallel: Switch | None = None
    zero_stage: Annotated[int, Field(ge=0, le=3)] | None = None
    zero_shards: Size | None = None  # ranks that ZeRO shards over; blank: all, unless the note says
    recompute: Recompute | None = None
    precision: str | None = None
    schedule: Annotated[ScheduleName | None, BeforeValidator(_schedule)] = None
    flash_attention: Annotated[int, Field(ge=0, le=9)] | None = None  # 0 none, else its version
    framework: str | None = None
    step_time_s: PositiveFloat | None = None
    tokens_per_s_per_gpu: PositiveFloat | None = None
    tflops_per_gpu: PositiveFloat | None = None
    mfu: Annotated[float, Field(ge=0)] | None = None
    peak_mem_gib: PositiveFloat | None = None
    oom: Switch | None = None
    fused_norm: Switch | None = None
    # 0, then the number of layers before each cut, then the number of layers
    stage_boundaries: Annotated[
        tuple[Annotated[int, Field(ge=0, le=MAX_LAYERS)], ...] | None, BeforeValidator(_boundaries)
    ] = None
    note: str | None = None

    @property
    def source_name(self) -> str:
        """Returns `run_id` without its last number; 'runs' where there is none."""
        return UNNUMBERED.sub("", self.run_id or "") or "runs"


COLUMNS: Final = tuple(Run.model_fields)


def read_runs(path: str | Path) -> tuple[Run, ...]:
    """Returns the runs of a CSV file; raises `InputError` naming line and column of what is wrong.

    Columns may stand in any order and be absent, apart from those in `REQUIRED`; blank fields are
    unknown. A column that is not in `COLUMNS` is an error, for it may be a misspelt one.
    """
    name = str(path)
    lines = _lines(_text(Path(path), name), name)
    header = next(lines, None)
    if header is None:
        raise mistake("(file)", "", "is empty", "Give a header line and a line per run", file=name)
    columns = _columns(header[1], name)
    runs: list[Run] = []
    wrong: list[Mistake] = []
    for number, fields in lines:
        if not any(field.strip() for field in fields):
            continue
        if len(runs) >= MAX_ROWS:
            raise mistake("(file)", "", f"has more than {MAX_ROWS} runs", "Split it", file=name)
        found = _run(columns, fields, number, name)
        if isinstance(found, Run):
            runs.append(found)
        else:
            wrong += found
        if len(wrong) >= MAX_MISTAKES:
            break
    if wrong:
        raise InputError(wrong[:MAX_MISTAKES])
    if not runs:
        raise mistake("(file)", "", "has no runs", "Add a line for each run", file=name)
    return tuple(runs)


def _text(path: Path, name: str) -> str:
    try:
        if path.is_dir():
            raise mistake("(path)", name, "is a directory", "Name a CSV file", file=name)
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            rule = f"is larger than {MAX_FILE_BYTES // 2**20} MiB"
            raise mistake("(file)", f"{size_bytes} bytes", rule, "Split it", file=name)
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise mistake("(file)", "", "is not UTF-8 text", "Name a CSV file", file=name) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise mistake("(path)", name, reason, "Check the path", file=name) from None


def _lines(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for fields in reader:
            yield reader.line_num, fields
    except csv.Error as error:
        where = f"line {reader.line_num}"
        raise mistake(where, "", str(error), "Repair the line", file=name) from None


def _columns(header: Sequence[str], name: str) -> list[str]:
    columns = [column.strip() for column in header]
    wrong = [
        Mistake(name, f"column {shorten(column)!r}", "", rule, REMEDY_COLUMN)
        for i, column in enumerate(columns)
        for rule in _column_rules(column, columns[:i])
    ]
    wrong += [
        Mistake(name, f"column {column!r}", "", "is missing", "Add it")
        for column in REQUIRED
        if column not in columns
    ]
    if wrong:
        raise InputError(wrong[:MAX_MISTAKES])
    return columns


def _column_rules(column: str, before: Sequence[str]) -> Iterator[str]:
    if column in before:
        yield "stands twice"
    elif column not in COLUMNS:
        yield "is not a column of a runs table"


def _run(
    columns: Sequence[str], fields: Sequence[str], number: int, name: str
) -> Run | list[Mistake]:
    if len(fields) != len(columns):
        rule = f"has {len(fields)} fields, but the header has {len(columns)}"
        return [Mistake(name, f"line {number}", "", rule, "Quote fields that hold commas")]
    row = {c: f.strip() for c, f in zip(columns, fields, strict=True) if f.strip()}
    try:
        return Run.model_validate(row)
    except ValidationError as error:
        return [_wrong_field(item, row, number, name) for item in error.errors(include_url=False)]


def _wrong_field(item: Any, row: dict[str, str], number: int, name: str) -> Mistake:
    column = str(item["loc"][0])
    rule = str(item["msg"])
    return Mistake(
        file=name,
        key=f"line {number}, column {column!r}",
        value=shorten(row.get(column, "")),
        rule=rule[:1].lower() + rule[1:],
        remedy="Correct it, or leave it blank where it is not known",
    )
