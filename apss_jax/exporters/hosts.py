"""Who starts which ranks: hostfiles in rank order, and the shell that starts them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from apss_jax.legality.launch import Agent, Launch

# The order of HOSTS is that of the ranks, which a scheduler's own count of nodes need not be.
PLACE = (
    'if [ -z "${NODE_RANK:-}" ]; then',
    '  for i in "${!HOSTS[@]}"; do',
    '    case "$(hostname)" in "${HOSTS[$i]}" | "${HOSTS[$i]}".*) NODE_RANK=$i ;; esac',
    "  done",
    "fi",
    ': "${NODE_RANK:?set it to the place of this host in HOSTS, counted from 0}"',
)


def hostfile(launch: Launch, *, typed: bool = False) -> str:
    """Returns a hostfile whose order is that of the ranks; `typed` adds the device types.

    The order decides the plan where devices differ: stage k has ranks k W / P to (k + 1) W / P of
    world W (Megatron-LM, training/initialize.py, default order tp-cp-ep-dp-pp).
    """
    lines = [f"{agent.host} slots={len(agent.gpus)}" for agent in launch.agents]
    if typed:
        types = agent_types(launch)
        words = ["-".join(name.split()) for name in types]  # a space would end the word
        lines = [f"{line} type={word}" for line, word in zip(lines, words, strict=True)]
    return "".join(f"{line}\n" for line in lines)


def agent_types(launch: Launch) -> list[str]:
    """Returns the device type of each agent's first rank."""
    cluster = launch.cluster
    if cluster is None:
        return []
    of_node = {
        name: kind
        for name, kind in zip(
            cluster.hosts or _numbered(sum(g.count for g in cluster.nodes)),
            [g.device_type for g in cluster.nodes for _ in range(g.count)],
            strict=True,
        )
    }
    return [of_node[agent.host] for agent in launch.agents]


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"node{i}" for i in range(count))


def hostfile_notes(launch: Launch) -> list[str]:
    """Returns what to know about hosts before the files are used."""
    notes = []
    if not launch.agents:
        notes.append("The cluster is not known here: set HOSTS and GPUS.")
    elif launch.cluster is not None and not launch.cluster.hosts:
        notes.append("Host names are made up: replace node0, node1, ... by yours, in this order.")
    if not launch.one_agent_per_host:
        notes.append("Some hosts start several groups of ranks: one process group for each line.")
    if len({len(agent.gpus) for agent in launch.agents}) > 1:
        notes.append(
            "Hosts have different numbers of GPUs: launchers that count them alike need torchrun "
            "on each host, as here."
        )
    return notes


def connections(launch: Launch) -> str:
    """Returns the shell line about CUDA's connections that Megatron asks for.

    One of them orders transfers before kernels; Megatron-FSDP refuses to start with one
    (Megatron-LM, training/arguments.py).
    """
    sharded = launch.plan.zero_stage > 1
    return (
        "unset CUDA_DEVICE_MAX_CONNECTIONS" if sharded else "export CUDA_DEVICE_MAX_CONNECTIONS=1"
    )


def torchrun(launch: Launch, command: Sequence[str], *first: str) -> str:
    """Returns the shell lines that start one host's ranks: it finds its place, or NODE_RANK says.

    One host needs no place. `first` are lines that come before torchrun.
    """
    agents = launch.agents or (Agent("localhost", tuple(range(launch.world))),)
    place = ("NODE_RANK=0",) if len(agents) == 1 else PLACE
    hosts = " ".join(shlex.quote(agent.host) for agent in agents)
    gpus = " ".join(",".join(map(str, agent.gpus)) for agent in agents)
    counts = " ".join(str(len(agent.gpus)) for agent in agents)
    return "\n".join(
        [
            f"HOSTS=({hosts})",
            f"GPUS=({gpus})",
            f"COUNTS=({counts})",
            *place,
            'export CUDA_VISIBLE_DEVICES="${GPUS[$NODE_RANK]}"',
            *first,
            'torchrun --nnodes "${#HOSTS[@]}" --node-rank "$NODE_RANK" \\',
            '  --nproc-per-node "${COUNTS[$NODE_RANK]}" \\',
            '  --master-addr "${MASTER_ADDR:-${HOSTS[0]}}" --master-port "${MASTER_PORT:-6000}" \\',
            f"  {' '.join(command)}",
            "",
        ]
    )
