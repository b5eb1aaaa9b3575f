"""A cluster in a box: each node a network namespace, its network as fast as it is told to be.

A token bucket at both ends of a node's cable limits what it sends and what it receives. Nodes have
host names of their own, so that processes in them believe to be on different hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KERNEL_HZ = 250  # tokens may come in its ticks; kernels with finer clocks need less
LEAST_BUCKET_BYTES = 64 * 1024  # one packet as the kernel passes it on
QUEUE = "100ms"
HOSTS = Path("/etc/netns")


@dataclass(frozen=True)
class Node:
    """One node of the box."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """Returns the command that runs what follows in this node."""
        inside = f'hostname {self.name}; exec "$@"'
        return ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", inside, "sh"]


def why_not() -> str | None:
    """Returns in words why no box can be built here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    try:
        with box([100]):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


@contextmanager
def box(megabits: Sequence[float | None]) -> Iterator[list[Node]]:
    """Yields nodes on one switch; each has a network of so many Mbit/s, None for no limit."""
    names = [f"box{os.getpid()}n{i}" for i in range(len(megabits))]
    nodes = [Node(name, f"10.77.0.{i + 1}") for i, name in enumerate(names)]
    switch = f"box{os.getpid()}switch"
    try:
        _run(f"ip netns add {switch}")
        _run(f"ip -n {switch} link add bridge type bridge")
        _run(f"ip -n {switch} link set bridge up")
        for node, rate in zip(nodes, megabits, strict=True):
            _add(node, rate, switch)
        yield nodes
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(HOSTS / name, ignore_errors=True)


def _add(node: Node, megabit: float | None, switch: str) -> None:
    port = f"p{node.address.rpartition('.')[2]}"
    _run(f"ip netns add {node.name}")
    _run(f"ip -n {switch} link add {port} type veth peer name eth0 netns {node.name}")
    _run(f"ip -n {switch} link set {port} master bridge up")
    _run(f"ip -n {node.name} addr add {node.address}/24 dev eth0")
    for device in ("eth0", "lo"):
        _run(f"ip -n {node.name} link set {device} up")
    if megabit is not None:
        # What leaves at once after a pause, as small as the kernel allows: short messages would
        # look too fast.
        bucket = max(LEAST_BUCKET_BYTES, int(megabit * 1e6 / 8 / KERNEL_HZ))
        shape = f"root tbf rate {megabit}mbit burst {bucket} latency {QUEUE}"
        _run(f"tc -n {node.name} qdisc add dev eth0 {shape}")
        _run(f"tc -n {switch} qdisc add dev {port} {shape}")
    (HOSTS / node.name).mkdir(parents=True, exist_ok=True)
    hosts = f"127.0.0.1 localhost\n{node.address} {node.name}\n"
    (HOSTS / node.name / "hosts").write_text(hosts)


def _run(command: str) -> None:
    subprocess.run(command.split(), capture_output=True, check=True, text=True)
