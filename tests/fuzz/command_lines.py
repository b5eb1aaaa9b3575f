"""Command lines as inputs: one word a line, read up to where planning would begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from apss_jax.cli import calibrate, estimate, search
from apss_jax.cli.run import run
from apss_jax.schema.plan import Estimate, Plan, SearchCounts, SearchResult

ENDS: Final = (0, 2, 3)
NOTHING: Final = SearchResult(
    plans=(), search=SearchCounts(candidates=0, legal=0, fits=0, dropped={}, elapsed_s={})
)
PLAN: Final = Plan(
    tensor_parallel=1, pipeline_parallel=1, data_parallel=1, micro_batch=1, num_micro_batches=1
)
LINES: Final = {
    "search": (
        "--model gpt2 --cluster 2x8xA100 --global-batch 256 --pin tp=8 --pin pp=1,2 --top 3 --json",
        "--seq-len 1024 --precision fp16 --stack megatron --solver exact --gpu H100",
    ),
    "estimate": (
        "--model gpt2 --cluster 1x8xA100 --global-batch 64 --tp 2 --pp 2 --layers 5,7 --json",
        "--model gpt2 --cluster 1x8xA100 --global-batch 64 --tp 1 --dp 8 --zero 2 --recompute full",
        "--megatron-args|--num-layers 12 --hidden-size 64 --num-attention-heads 4 --bf16|--gpu|H100"
        "|--cluster|1x8xA100|--global-batch|8",
        "--plan plan.json --what-if",
    ),
    "calibrate": ("--runs runs.csv --stack megatron",),
}


def examples(command: str) -> tuple[bytes, ...]:
    """Returns command lines of a command, a word on each line."""
    lines = LINES[command]
    return tuple("\n".join(line.split("|" if "|" in line else None)).encode() for line in lines)


def _planned(*given: Any, **named: Any) -> Any:
    return Estimate(legal=True, plan=PLAN)


def _searched(*given: Any, **named: Any) -> SearchResult:
    return NOTHING


def _none(*given: Any, **named: Any) -> None:
    return None


STAND_INS: Final[dict[str, Callable[..., Any]]] = {
    "apss_jax.cli.search._search": _searched,
    "apss_jax.planning.estimate.estimate_plan": _planned,
    "apss_jax.planning.what_if.what_if": _none,
    "apss_jax.cost.compilation.keep_compiled_programs": _none,
}
APPS: Final = {
    "search": search.app, "estimate": estimate.app, "calibrate": calibrate.app,
}  # fmt: skip


def answered(path: Path, *, command: str) -> tuple[int, str, str]:
    """Returns the exit code and both streams of a command line."""
    data = path.read_bytes().replace(b"\0", b"")
    words = data.decode("utf-8", errors="surrogateescape").split("\n")
    with ExitStack() as stack:
        for name, stand_in in STAND_INS.items():
            stack.enter_context(patch(name, stand_in))
        return _ended(command, words)


def _ended(command: str, words: Sequence[str]) -> tuple[int, str, str]:
    out, errors = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = run(APPS[command], words)
    if code not in ENDS or (code == ENDS[1] and not (out.getvalue() or errors.getvalue())):
        raise AssertionError(f"ended with {code} and said {errors.getvalue()!r}")
    return code, out.getvalue(), errors.getvalue()


def reader_of(command: str) -> tuple[str, Callable[[Path], Any], Callable[[], tuple[bytes, ...]]]:
    """Returns name, reader and examples of a command's lines."""
    return f"line: {command}", partial(answered, command=command), partial(examples, command)
