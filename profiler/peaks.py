"""The most memory that one point takes, in a process of its own.

An allocator's peak is that of the whole process and cannot be set back, so each point that is asked
for has a process with nothing else in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from apss_jax.schema.cluster import LayerShape
from profiler.budget import Budget
from profiler.points import Point, Subject

LONGEST_S: Final = 180.0


def peak_in_own_process(
    point: Point, kernel: str | None, budget: Budget, *, device_index: int = 0
) -> int | None:
    """Returns the most bytes that the point held; None where no allocator counts, or it failed.

    The process is ended when the budget is spent.
    """
    question = {
        "shape": point.subject.shape.model_dump(mode="json", exclude_none=True),
        "key": point.key,
        "kernel": kernel,
        "device": device_index,
    }
    command = [sys.executable, "-m", "profiler.peaks"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=min(LONGEST_S, budget.left_s),
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return None
    return _told(done.stdout) if done.returncode == 0 else None


def _told(answer: bytes) -> int | None:
    """Returns the peak that a process wrote, None where it wrote anything else."""
    try:
        found = json.loads(answer)
    except ValueError:  # no JSON, or no text at all
        return None
    peak_bytes = found.get("peak_bytes") if isinstance(found, dict) else None
    return peak_bytes if type(peak_bytes) is int and peak_bytes >= 0 else None


def peak_of(question: dict[str, Any]) -> int | None:
    """Returns the peak of this process after both passes of the point in question."""
    import jax

    from profiler.facts import memory_stats
    from profiler.kernels import Shard
    from profiler.layers import unit_of
    from profiler.programs import passes_of

    name, tensor_parallel, micro_batch, seq_len, precision, recompute = question["key"]
    subject = Subject(name, LayerShape.model_validate_json(json.dumps(question["shape"])), 0)
    shard = Shard(tensor_parallel, question["kernel"], recompute == "selective")
    device = jax.local_devices()[question["device"]]
    with jax.default_device(device):
        unit = unit_of(subject.shape, precision, shard, micro_batch, seq_len)
        passes = passes_of(unit, recompute)
        results = [passes.forward(), passes.backward() if passes.backward else None]
        jax.block_until_ready(results)
    found = (memory_stats(device) or {}).get("peak_bytes_in_use")
    return None if found is None else int(found)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"peak_bytes": peak_of(json.loads(sys.stdin.read()))}))
