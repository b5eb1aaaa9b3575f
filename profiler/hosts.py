"""How the processes of a run find each other, and which trap would keep them apart."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from apss_jax.schema.errors import mistake
from profiler.meeting import meet

KEY: Final = "--coordinator"
JOIN_TIMEOUT_S: Final = 120
FLAGS: Final = "Give --coordinator HOST:PORT, --num-processes and --process-id"

Environment = Mapping[str, str]
ResolveFn = Callable[[str], str]
"""Returns the address of a host name."""


@dataclass(frozen=True)
class Launch:
    """How this process joins the others of its run."""

    launcher: str  # who started it, in words
    coordinator: str | None  # HOST:PORT of process 0; None: JAX finds it
    num_processes: int | None  # None: JAX finds it
    process_id: int | None  # None: JAX finds it
    local_device: int | None = None  # the one device of this process; None: all of its host
    several_hosts: bool | None = None  # None: not known


@dataclass(frozen=True)
class _Launcher:
    """What a launcher puts into the environment; the first variable that is there counts."""

    name: str
    counts: tuple[str, ...]
    rank: str
    hosts: tuple[str, ...] = ()  # how many hosts take part
    found_by_jax: str | None = None  # with this variable JAX finds the coordinator itself


LAUNCHERS: Final = (
    _Launcher("torchrun", ("WORLD_SIZE",), "RANK", ("GROUP_WORLD_SIZE",)),
    # Inside `salloc` SLURM_NTASKS is that of the allocation although one task runs.
    _Launcher(
        "SLURM",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        "SLURM_STEP_NODELIST",
    ),
    # Open MPI 5 has no orte daemon: there the coordinator must be told.
    _Launcher(
        "Open MPI",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_RANK",
        found_by_jax="OMPI_MCA_orte_hnp_uri",
    ),
    _Launcher("Kubernetes", (), "JOB_COMPLETION_INDEX", found_by_jax="KUBERNETES_SERVICE_HOST"),
)


def find_launch(
    environment: Environment,
    *,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Launch | None:
    """Returns how to join the other processes, or None where this one runs alone.

    What flags leave open comes from the launcher's variables; raises `InputError` for a part that
    nobody gives.
    """
    launcher = _present(environment)
    count, rank, hosts = _variables(launcher, environment)
    count = num_processes if num_processes is not None else count
    rank = process_id if process_id is not None else rank
    if coordinator is None and num_processes is None and process_id is None:
        if launcher is None or count == 1:
            return None
        coordinator = _own_coordinator(launcher, environment)
        if coordinator is None and _jax_finds(launcher, environment):
            several = None if hosts is None else hosts > 1
            return Launch(launcher.name, None, None, None, several_hosts=several)
    name = launcher.name if launcher is not None else "flags"
    _refuse_gaps(name, coordinator, count, rank)
    device = _local_device(launcher, environment)
    return Launch(name, coordinator, count, rank, device, None if hosts is None else hosts > 1)


def join(launch: Launch) -> None:
    """Joins the run; raises `InputError` when the other processes cannot be reached."""
    if launch.coordinator and launch.num_processes and launch.process_id is not None:
        meet(launch.coordinator, launch.num_processes, launch.process_id, JOIN_TIMEOUT_S)
    import jax

    try:
        jax.distributed.initialize(
            coordinator_address=launch.coordinator,
            num_processes=launch.num_processes,
            process_id=launch.process_id,
            initialization_timeout=JOIN_TIMEOUT_S,
            local_device_ids=launch.local_device,
        )
    except (RuntimeError, ValueError) as error:
        rule = f"the processes of {launch.launcher} did not meet: {_first_line(error)}"
        raise mistake(KEY, launch.coordinator or "", rule, FLAGS) from None
    if jax.default_backend() == "cpu":
        refuse_loopback(launch, socket.gethostname(), socket.gethostbyname)


def refuse_loopback(launch: Launch, host: str, resolve: ResolveFn) -> None:
    """Raises `InputError` where gloo would offer other hosts an address that is only its own.

    On CPU, gloo listens on the address of the host's own name. Debian and others map that name to
    127.0.1.1 in /etc/hosts, and then other hosts connect to themselves.
    """
    address = _resolved(host, resolve)
    if address is None or not ipaddress.ip_address(address).is_loopback:
        return
    if not _spans_hosts(launch, resolve):
        return
    reachable = _address_towards(launch.coordinator)
    rule = f"/etc/hosts maps this host's name to {address}, where other hosts cannot reach it"
    remedy = f"Put the line '{reachable or 'ADDRESS'} {host}' into its /etc/hosts"
    raise mistake(f"host {host}", "", rule, remedy)


def _spans_hosts(launch: Launch, resolve: ResolveFn) -> bool:
    if launch.several_hosts is not None:
        return launch.several_hosts
    if launch.coordinator is None:
        return False
    address = _resolved(_host_of(launch.coordinator), resolve)
    return address is not None and not ipaddress.ip_address(address).is_loopback


def _present(environment: Environment) -> _Launcher | None:
    return next((one for one in LAUNCHERS if one.rank in environment), None)


def _variables(
    launcher: _Launcher | None, environment: Environment
) -> tuple[int | None, int | None, int | None]:
    """Returns number of processes, number of this one, and hosts, as far as they are told."""
    if launcher is None:
        return None, None, None
    count, rank, hosts = (
        _first_number(names, environment)
        for names in (launcher.counts, (launcher.rank,), launcher.hosts)
    )
    return count, rank, hosts


def _first_number(names: tuple[str, ...], environment: Environment) -> int | None:
    texts = ((name, environment[name]) for name in names if environment.get(name))
    name, text = next(texts, ("", ""))
    if not name:
        return None
    if not text.strip().isdecimal():
        raise mistake(name, text, "is not a whole number", "Unset it or correct it")
    return int(text)


def _own_coordinator(launcher: _Launcher, environment: Environment) -> str | None:
    """Returns where torchrun's process 0 is; on its port an agent listens, so the next is ours."""
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    if launcher.name != "torchrun" or not host or not port.isdecimal():
        return None
    taken = environment.get("TORCHELASTIC_USE_AGENT_STORE", "").casefold() == "true"
    return f"{host}:{int(port) + taken}"


def _jax_finds(launcher: _Launcher, environment: Environment) -> bool:
    if launcher.name == "Kubernetes" and find_spec("kubernetes") is None:
        return False
    return launcher.found_by_jax is not None and launcher.found_by_jax in environment


def _local_device(launcher: _Launcher | None, environment: Environment) -> int | None:
    """Returns the one device of a process that torchrun started beside others on its host."""
    if launcher is None or launcher.name != "torchrun":
        return None
    beside = _first_number(("LOCAL_WORLD_SIZE",), environment)
    return _first_number(("LOCAL_RANK",), environment) if beside and beside > 1 else None


def _refuse_gaps(name: str, coordinator: str | None, count: int | None, rank: int | None) -> None:
    given = {KEY: coordinator, "--num-processes": count, "--process-id": rank}
    missing = [flag for flag, value in given.items() if value is None]
    if missing or coordinator is None or count is None or rank is None:
        rule = f"is needed to join the other processes; {name} does not tell it"
        raise mistake(" and ".join(missing), "", rule, FLAGS)
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise mistake(KEY, coordinator, "is not HOST:PORT", "Write it as in 10.0.0.1:9876")
    if not 0 <= rank < count:
        rule = f"must be at least 0 and below the {count} processes"
        raise mistake("--process-id", rank, rule, FLAGS)


def _host_of(coordinator: str) -> str:
    return coordinator.rpartition(":")[0].strip("[]")


def _resolved(host: str, resolve: ResolveFn) -> str | None:
    try:
        return resolve(host)
    except OSError:
        return None


def _address_towards(coordinator: str | None) -> str | None:
    """Returns the address that this host has on its way to the coordinator; sends nothing."""
    if coordinator is None:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((_host_of(coordinator), 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
