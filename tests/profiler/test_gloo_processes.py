"""The whole command on several processes: one file, whose links a search uses."""

from pathlib import Path

import pytest
from workers import free_port, run_workers

from apss_jax import search_plans
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile

COMMAND = """
import sys
from profiler.cli import main
sys.argv[0] = "profiler"
main()
"""
SMALL = ("--model", "gpt2", "--seq-len", "128", "--micro-batch", "1", "--tp", "1", "--no-peaks")


@pytest.mark.slow
def test_two_processes_write_one_profile_that_a_search_takes(tmp_path: Path) -> None:
    """Both measure, the first one writes; the link between them is gloo's, and plans use it."""
    out = tmp_path / "profile.json"
    meeting = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2")
    asked = (*SMALL, "--minutes", "1", "--recompute", "none", "--out", str(out), *meeting)
    words = [[*asked, "--process-id", str(rank)] for rank in range(2)]
    run_workers(COMMAND, words)
    profile = load_cluster(out)
    assert profile.num_devices == 2
    link = profile.links[profile.nodes[0].intra_link]
    assert link.provenance == "measured"
    assert {m.operation for m in profile.link_measurements} >= {"all_reduce", "send"}
    result = search_plans(load_model("gpt2"), profile, global_batch=4, seq_len=128)
    assert result.plans


@pytest.mark.slow
def test_hosts_without_the_file_go_on_with_the_first_ones(tmp_path: Path) -> None:
    """Each process has a folder of its own, and only the first one's gets a file."""
    outs = [tmp_path / str(rank) / "profile.json" for rank in range(2)]
    for out in outs:
        out.parent.mkdir()
    first, second = (_run(outs, minutes, *more) for minutes, more in SHORT_THEN_MORE)
    assert not outs[1].exists()
    assert second.measurements[: len(first.measurements)] == first.measurements
    found = {sample for m in second.link_measurements for sample in m.samples}
    assert {sample for m in first.link_measurements for sample in m.samples} < found


SHORT_THEN_MORE = (("0.3", ()), ("0.7", ("--resume",)))


def _run(outs: list[Path], minutes: str, *more: str) -> ClusterProfile:
    """Returns what two processes leave in the first one's file."""
    meeting = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2")
    asked = (*SMALL, "--minutes", minutes, "--recompute", "none", *meeting, *more)
    run_workers(
        COMMAND,
        [[*asked, "--out", str(out), "--process-id", str(rank)] for rank, out in enumerate(outs)],
    )
    return load_cluster(outs[0])
