"""Runs Python in processes of their own, with as many CPU devices as asked for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240


def run_workers(
    code: str,
    arguments: Sequence[Sequence[str]],
    *,
    devices: int = 1,
    prefixes: Sequence[Sequence[str]] = (),
) -> list[str]:
    """Returns what each process printed; fails with its stderr when one fails.

    `prefixes` holds for each process the command that starts it somewhere else.
    """
    environment = {
        **os.environ,
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    started = [
        subprocess.Popen(
            [*before, sys.executable, "-c", code, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )
        for before, words in zip(prefixes or [()] * len(arguments), arguments, strict=True)
    ]
    try:
        results = [process.communicate(timeout=TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, results, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in results]


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
