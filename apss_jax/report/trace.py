"""The timeline of a result in Chrome's trace format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from apss_jax.report.plan_words import PASS_WORDS
from apss_jax.schema.detail import StageTimeline, Timeline
from apss_jax.schema.plan import SearchResult
from apss_jax.units import US

PROCESS: Final = 1
Event = dict[str, Any]


def trace_of(result: SearchResult) -> dict[str, Any] | None:
    """Returns the trace of the first plan, a thread for each stage; None without a timeline."""
    timeline = result.timeline
    if timeline is None:
        return None
    return {
        "traceEvents": list(_events(result, timeline)),
        "displayTimeUnit": "ms",
        "otherData": {
            "step_time_s": timeline.step_time_s,
            "windows_s": [list(window) for window in timeline.windows_s],
            "num_micro_batches": timeline.num_micro_batches,
        },
    }


def _events(result: SearchResult, timeline: Timeline) -> Iterator[Event]:
    plan = result.plans[0]
    yield _name("process_name", 0, f"{plan.model} on {plan.cluster}, predicted")
    for index, ops in enumerate(timeline.stages):
        kind = plan.stages[index].device_type
        yield _name("thread_name", index, f"stage {index}" + (f" ({kind})" if kind else ""))
        yield from _ops(index, ops)
    if len(timeline.windows_s) > 1:
        (_, left_s), (back_s, _) = timeline.windows_s
        yield _name("thread_name", len(timeline.stages), "not listed")
        yield _span(len(timeline.stages), "ops are left out", left_s, back_s)


def _ops(index: int, ops: StageTimeline) -> Iterator[Event]:
    columns = (ops.passes, ops.micro_batches, ops.chunks, ops.start_s, ops.end_s)
    for letter, micro_batch, chunk, start_s, end_s in zip(*columns, strict=True):
        name = letter if letter == "U" else f"{letter}{micro_batch}"
        event = _span(index, name, start_s, end_s)
        args = {} if letter == "U" else {"micro_batch": micro_batch, "chunk": chunk}
        yield {**event, "cat": PASS_WORDS[letter], "args": args}


def _span(thread: int, name: str, start_s: float, end_s: float) -> Event:
    duration_us = (end_s - start_s) / US
    return {"ph": "X", "pid": PROCESS, "tid": thread, "name": name, "ts": start_s / US,
            "dur": duration_us}  # fmt: skip


def _name(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": PROCESS, "tid": thread, "name": what, "args": {"name": name}}
