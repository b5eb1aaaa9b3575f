"""Starts the processes of a trial, one for each stage, and collects what they measured."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apss_jax.schema.errors import mistake
from apss_jax.trials.assignment import ASSIGNMENT, Assignment, StageRecord, record_name

WORKER: Final = "apss_jax.trials.worker"
LONGEST_S: Final = 1800
LOOK_EVERY_S: Final = 0.1
KEPT_LINES: Final = 3  # of what a failed process said
# One core for each process: with threads of its own for every product, each would disturb all.
CPU_FLAGS: Final = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
PROBE: Final = "import jax; print(jax.default_backend(), jax.local_device_count())"


@dataclass(frozen=True)
class Devices:
    """The devices at hand."""

    platform: str
    count: int

    @property
    def are_cores(self) -> bool:
        """Returns whether they are processor cores, of which there are as many as one asks for."""
        return self.platform == "cpu"


def devices_at_hand() -> Devices:
    """Returns the devices of this host; a process of its own looks, so that none stays taken."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False
    )
    words = done.stdout.split()
    if done.returncode or len(words) < 2:
        return Devices("cpu", os.cpu_count() or 1)
    platform = words[-2]
    count = (os.cpu_count() or 1) if platform == "cpu" else int(words[-1])
    return Devices(platform, count)


def run_assignment(assignment: Assignment, devices: Devices) -> list[StageRecord]:
    """Returns the record of every stage; raises `InputError` when a process fails."""
    with tempfile.TemporaryDirectory(prefix="apss-trial-") as name:
        folder = Path(name)
        assignment.write(folder / ASSIGNMENT)
        port = _free_port()
        logs = [folder / f"stage-{stage}.log" for stage in range(assignment.num_stages)]
        processes = [
            _start(folder, stage, port, logs[stage], _environment(assignment, stage, devices))
            for stage in range(assignment.num_stages)
        ]
        try:
            failed = _wait(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if failed is not None:
            raise mistake(
                f"stage {failed}",
                "",
                f"its process failed: {_last_words(logs[failed])}",
                "Run a smaller plan, or free the devices",
            )
        stages = range(assignment.num_stages)
        return [StageRecord.read(folder / record_name(stage)) for stage in stages]


def _start(
    folder: Path, stage: int, port: int, log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", WORKER, str(folder), str(stage), str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _environment(assignment: Assignment, stage: int, devices: Devices) -> dict[str, str]:
    each = assignment.devices_per_stage
    found = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if devices.are_cores:
        forced = f"--xla_force_host_platform_device_count={each}"
        return {**found, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{forced} {CPU_FLAGS}"}
    visible = _visible_devices(devices.count)[stage * each : (stage + 1) * each]
    return {**found, "CUDA_VISIBLE_DEVICES": ",".join(visible)}


def _visible_devices(count: int) -> list[str]:
    told = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return told.split(",") if told else [str(i) for i in range(count)]


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Returns the first process that failed, None when all ended well."""
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        codes = [process.poll() for process in processes]
        bad = [i for i, code in enumerate(codes) if code]
        if bad:
            return bad[0]
        if all(code == 0 for code in codes):
            return None
        time.sleep(LOOK_EVERY_S)
    return 0


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-KEPT_LINES:]) or "without a word"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
