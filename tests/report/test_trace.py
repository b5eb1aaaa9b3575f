"""The timeline as a trace that Perfetto opens."""

import json

from report_samples import empty_result, long_result, mixed_result

from apss_jax.report.trace import trace_of


def spans(trace: dict) -> list[dict]:
    """Returns the events that take time."""
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_a_trace_holds_the_listed_ops() -> None:
    """One complete event for each op, in microseconds, on its stage's thread."""
    timeline, trace = mixed_result().timeline, trace_of(mixed_result())
    assert timeline and trace
    for index, stage in enumerate(timeline.stages):
        own = [event for event in spans(trace) if event["tid"] == index]
        assert [event["ts"] for event in own] == [1e6 * s for s in stage.start_s]
        ends = [event["ts"] + event["dur"] for event in own]
        assert max(ends) <= 1e6 * timeline.step_time_s * (1 + 1e-9)
    assert len(spans(trace)) == sum(len(stage.passes) for stage in timeline.stages)


def test_events_have_what_the_format_asks_for() -> None:
    """Phase, process, thread and name; names of threads come before their ops; plain JSON."""
    trace = json.loads(json.dumps(trace_of(mixed_result()), allow_nan=False))
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= set(event)
    assert all(event["dur"] >= 0 for event in spans(trace))
    first = trace["traceEvents"][1]
    assert (first["name"], first["args"]["name"][:7]) == ("thread_name", "stage 0")


def test_an_op_says_what_it_is() -> None:
    """Forward pass of micro-batch 0 on the first stage, its gradients last."""
    trace = trace_of(mixed_result())
    assert trace
    own = [event for event in spans(trace) if event["tid"] == 0]
    assert (own[0]["name"], own[0]["cat"]) == ("F0", "forward")
    assert own[0]["args"] == {"micro_batch": 0, "chunk": 0}
    assert (own[-1]["name"], own[-1]["cat"]) == ("U", "gradients and update")


def test_what_is_left_out_is_marked() -> None:
    """A long step has one more thread that spans the part without ops."""
    timeline, trace = long_result().timeline, trace_of(long_result())
    assert timeline and trace
    (gap,) = [event for event in spans(trace) if event["tid"] == len(timeline.stages)]
    assert gap["ts"] == 1e6 * timeline.windows_s[0][1]


def test_without_a_timeline_there_is_no_trace() -> None:
    """No plan, no ops."""
    assert trace_of(empty_result()) is None
