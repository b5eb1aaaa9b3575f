"""Processes find each other through flags and launchers, and the loopback trap is told."""

import json

import pytest
from workers import free_port, run_workers

from apss_jax.schema.errors import InputError
from profiler.hosts import Launch, find_launch, refuse_loopback

TORCHRUN = {
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "4",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
}

MEET = """
import jax, os, sys
from profiler.hosts import find_launch, join
from profiler.processes import gather_names
join(find_launch(os.environ, coordinator=sys.argv[2] if len(sys.argv) > 2 else None))
print(gather_names(f"worker {sys.argv[1]}"))
jax.distributed.shutdown()
"""


def test_alone_there_is_nothing_to_join() -> None:
    """Without flags and launcher, and with one task of a launcher, a process is alone."""
    assert find_launch({}) is None
    assert find_launch({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert find_launch({**TORCHRUN, "WORLD_SIZE": "1"}) is None


def test_flags_say_everything() -> None:
    """Three flags are enough, whatever a launcher says."""
    launch = find_launch(SLURM, coordinator="h:99", num_processes=3, process_id=2)
    assert launch is not None
    assert (launch.coordinator, launch.num_processes, launch.process_id) == ("h:99", 3, 2)


def test_torchrun_variables_are_mapped() -> None:
    """JAX does not know torchrun: address, count, number and local device come from us."""
    assert find_launch(TORCHRUN) == Launch(
        "torchrun", "10.0.0.1:29500", 4, 3, local_device=1, several_hosts=True
    )


def test_the_port_of_torchrun_s_agent_is_not_used() -> None:
    """Where torchrun's agent listens on the port itself, the next one is taken."""
    launch = find_launch({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert launch is not None
    assert launch.coordinator == "10.0.0.1:29501"


@pytest.mark.parametrize(("environment", "name"), [(SLURM, "SLURM"), (OPEN_MPI, "Open MPI")])
def test_what_jax_detects_is_left_to_jax(environment: dict[str, str], name: str) -> None:
    """SLURM and Open MPI 4 tell JAX everything."""
    launch = find_launch(environment)
    assert launch is not None
    assert (launch.launcher, launch.coordinator, launch.process_id) == (name, None, None)


def test_a_launcher_fills_in_what_flags_leave_open() -> None:
    """Open MPI 5 and Kubernetes do not tell where process 0 is; the rest comes from them."""
    fifth = {key: value for key, value in OPEN_MPI.items() if "orte" not in key}
    launch = find_launch(fifth, coordinator="10.0.0.1:9876")
    assert launch is not None
    assert (launch.num_processes, launch.process_id) == (2, 0)
    pod = find_launch({"JOB_COMPLETION_INDEX": "1"}, coordinator="svc:9876", num_processes=2)
    assert pod is not None
    assert pod.process_id == 1


@pytest.mark.parametrize(
    ("environment", "flags", "said"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, {}, "--coordinator"),
        ({}, {"coordinator": "h:1"}, "--num-processes and --process-id"),
        ({}, {"coordinator": "h", "num_processes": 2, "process_id": 0}, "HOST:PORT"),
        ({}, {"coordinator": "h:1", "num_processes": 2, "process_id": 2}, "below the 2"),
        ({**TORCHRUN, "RANK": "two"}, {}, "RANK is two"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    environment: dict[str, str], flags: dict[str, str], said: str
) -> None:
    """Each gap gives one message that says which flag fills it."""
    with pytest.raises(InputError, match=said):
        find_launch(environment, **flags)


def _addresses(host: str) -> str:
    return {"node1": "127.0.1.1", "node2": "10.0.0.2", "localhost": "127.0.0.1"}[host]


def test_a_name_that_means_loopback_is_refused() -> None:
    """With processes on other hosts, a name mapped to 127.0.1.1 is named with its remedy."""
    launch = Launch("flags", "node2:9876", 2, 1)
    with pytest.raises(InputError, match=r"127\.0\.1\.1.*node1' into its /etc/hosts"):
        refuse_loopback(launch, "node1", _addresses)
    slurm = Launch("SLURM", None, None, None, several_hosts=True)
    with pytest.raises(InputError, match="node1"):
        refuse_loopback(slurm, "node1", _addresses)


@pytest.mark.parametrize(
    ("host", "coordinator", "several"),
    [("node2", "node2:1", None), ("node1", "localhost:1", None), ("node1", None, False)],
)
def test_other_names_pass(host: str, coordinator: str | None, several: bool | None) -> None:
    """A reachable address passes, and so does loopback where all processes share a host."""
    refuse_loopback(Launch("flags", coordinator, 2, 1, several_hosts=several), host, _addresses)


@pytest.mark.slow
def test_torchrun_s_processes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with torchrun's variables alone learn each other's names."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.setenv("WORLD_SIZE", "2")
    code = "import os, sys; os.environ['RANK'] = sys.argv[1]\n" + MEET
    outputs = run_workers(code, [["0"], ["1"]])
    assert [json.loads(o.splitlines()[-1].replace("'", '"')) for o in outputs] == [
        ["worker 0", "worker 1"]
    ] * 2


@pytest.mark.slow
def test_slurm_s_processes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of a SLURM step find each other without a flag."""
    here = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1"}
    for name, value in {**SLURM, **here}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", str(free_port()))
    code = (
        "import os, sys; os.environ['SLURM_PROCID'] = os.environ['SLURM_LOCALID'] = sys.argv[1]\n"
    )
    outputs = run_workers(code + MEET, [["0"], ["1"]])
    assert all("worker 0" in output and "worker 1" in output for output in outputs)
