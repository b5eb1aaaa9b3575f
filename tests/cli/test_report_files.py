"""What `--out` leaves beside the documents: a page and a trace, and nothing of an older search."""

import json
from pathlib import Path

from called import CallFn

SMALL = "--model gpt2 --cluster 1x4xA100-SXM4-80GB --global-batch 32 --seq-len 1024 --top 2"
NO_PLAN = "--model llama-3.1-8b --cluster 1x1xA100-SXM4-80GB --global-batch 4"


def test_a_report_is_written_beside_the_result(call: CallFn) -> None:
    """The page and the trace are of the very document that is printed and written."""
    done = call("search", *SMALL.split(), "--out", "found", "--json")
    names = {path.name for path in Path("found").iterdir()}
    assert names == {"result.json", "plan.json", "report.html", "trace.json"}
    result = json.loads(Path("found/result.json").read_text())
    assert result == done.document
    assert {"timeline", "sensitivity", "neighbours"} <= set(result)
    assert "gpt2 (124 M parameters, 12 layers)" in Path("found/report.html").read_text()
    trace = json.loads(Path("found/trace.json").read_text())
    assert trace["otherData"]["step_time_s"] == result["timeline"]["step_time_s"]
    assert all(f"found/{name}" in done.err for name in names)


def test_a_report_is_not_replaced_unasked(call: CallFn) -> None:
    """A page of another search is a reason to ask for --force."""
    Path("found").mkdir()
    Path("found/report.html").write_text("mine")
    done = call("search", *SMALL.split(), "--out", "found")
    assert (done.code, Path("found/report.html").read_text()) == (2, "mine")
    assert "report.html" in done.err and "--force" in done.err


def test_an_older_trace_does_not_stay(call: CallFn) -> None:
    """Where no plan fits, the page says so, and the older plan and its ops are gone."""
    Path("found").mkdir()
    for name in ("plan.json", "trace.json"):
        Path("found", name).write_text("{}")
    done = call("search", *NO_PLAN.split(), "--out", "found", "--force")
    assert done.code == 3
    assert {path.name for path in Path("found").iterdir()} == {"result.json", "report.html"}
    assert "No plan fits" in Path("found/report.html").read_text()
