"""Hostfiles, SLURM's variables and what nvidia-smi prints, as clusters."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.hosts import cluster_of_hosts, hosts_in, hosts_of_slurm
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import InputError

H100 = "H100-SXM5-80GB"
HOSTFILE = """# the rack on the left
gpu-01 slots=8
gpu-02 slots=8   # repaired in May

10.0.0.7  slots=16
"""
SMI_LIST = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)
"""
SMI_QUERY = """name, memory.total [MiB]
NVIDIA H100 80GB HBM3, 81559 MiB
NVIDIA H100 80GB HBM3, 81559 MiB
"""
TOPOLOGY = """\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\t0-31\t0
GPU1\tNV18\t X \tSYS\t32-63\t1
NIC0\tPIX\tSYS\t X \t\t
"""


def _file(folder: Path, text: str) -> str:
    path = folder / "hosts"
    path.write_text(text)
    return str(path)


def _mistake(spec: str, gpu: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_cluster(spec, gpu=gpu)
    (found,) = caught.value.mistakes
    assert found.rule and found.remedy
    return found.sentence()


def test_a_hostfile(tmp_path: Path) -> None:
    """Comments and blank lines mean nothing, slots may have two digits, names are kept in order."""
    cluster = load_cluster(_file(tmp_path, HOSTFILE), gpu="H100")
    assert cluster.hosts == ("gpu-01", "gpu-02", "10.0.0.7")
    assert [(g.count, g.devices, g.device_type) for g in cluster.nodes] == [
        (2, 8, H100),
        (1, 16, H100),
    ]
    assert any("--gpu H100" in note for note in cluster.notes)


def test_a_hostfile_that_names_its_gpus(tmp_path: Path) -> None:
    """`type=` makes a mixed cluster, and no other word on the GPU is needed."""
    text = "a slots=8 type=A100\nb slots=8 type=H100\n"
    cluster = load_cluster(_file(tmp_path, text))
    assert [g.device_type for g in cluster.nodes] == ["A100-SXM4-80GB", H100]


@pytest.mark.parametrize(("line", "devices"), [("n1:4", 4), ("n1 4", 4), ("n1 max_slots=2", 2)])
def test_other_spellings_of_slots(tmp_path: Path, line: str, devices: int) -> None:
    """MPICH's colon, a bare number and Open MPI's max_slots are read, too."""
    assert load_cluster(_file(tmp_path, line), gpu="H100").num_devices == devices


def test_slots_that_are_not_said(tmp_path: Path) -> None:
    """A bare host name has eight GPUs, and the cluster says that this was assumed."""
    cluster = load_cluster(_file(tmp_path, "n1\nn2\n"), gpu="H100")
    assert cluster.num_devices == 16
    assert any("8 GPUs each" in note for note in cluster.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=8\na slots=8\n", "twice"),
        ("a slots=0\n", "no number of GPUs"),
        ("a slots=x\n", "no number of GPUs"),
        ("$(reboot) slots=8\n", "is no host"),
        ("# nothing\n", "names no host"),
    ],
)
def test_a_wrong_hostfile(tmp_path: Path, text: str, said: str) -> None:
    """Each mistake names the line and the remedy."""
    assert said in _mistake(_file(tmp_path, text), gpu="H100")


def test_a_hostfile_needs_a_gpu(tmp_path: Path) -> None:
    """Hosts alone do not say which GPU they have, and nothing is guessed."""
    assert "Add --gpu" in _mistake(_file(tmp_path, HOSTFILE))


def test_a_gpu_beside_devices_that_are_named() -> None:
    """Two answers to one question are refused."""
    assert "--gpu" in _mistake("2x8xH100", gpu="A100")


@pytest.mark.parametrize(
    ("text", "gpu", "nodes"),
    [
        (SMI_LIST, None, [(2, "A100-SXM4-80GB")]),
        (SMI_QUERY, None, [(2, H100)]),
        (TOPOLOGY, "H100", [(2, H100)]),
    ],
)
def test_what_nvidia_smi_prints(
    tmp_path: Path, text: str, gpu: str | None, nodes: list[tuple[int, str]]
) -> None:
    """A list, a query and a matrix each give one node; no name of a host is made up."""
    cluster = load_cluster(_file(tmp_path, text), gpu=gpu)
    assert [(g.devices, g.device_type) for g in cluster.nodes] == nodes
    assert cluster.hosts == ()


def test_the_matrix_tells_its_links(tmp_path: Path) -> None:
    """The note says what joins the GPUs."""
    notes = load_cluster(_file(tmp_path, TOPOLOGY), gpu="H100").notes
    assert any("2 GPUs joined by NV18" in note for note in notes)


def test_an_unknown_gpu_is_named(tmp_path: Path) -> None:
    """The driver's name stands in the message."""
    text = "GPU 0: NVIDIA Quantum 9000 (UUID: GPU-1)"
    assert "Quantum 9000" in _mistake(_file(tmp_path, text))


SLURM = {
    "SLURM_JOB_NODELIST": "gpu[01-03,07],login1",
    "SLURM_NNODES": "5",
    "SLURM_GPUS_ON_NODE": "8",
}


def test_a_slurm_allocation() -> None:
    """Ranges keep their leading zeros."""
    found = hosts_of_slurm(SLURM)
    assert [h.name for h in found.hosts] == ["gpu01", "gpu02", "gpu03", "gpu07", "login1"]
    assert {h.gpus for h in found.hosts} == {8}


def test_slurm_says_its_gpus() -> None:
    """`h100:4` names type and number."""
    found = hosts_of_slurm({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_GPUS_PER_NODE": "h100:4"})
    assert {(h.gpus, h.gpu_name) for h in found.hosts} == {(4, "h100")}


def test_slurm_from_the_environment_and_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--cluster slurm` and a file with the variables give the same nodes."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    lines = "\n".join(f"export {name}={value}" for name, value in SLURM.items())
    inside, outside = (load_cluster(s, gpu="H100") for s in ("slurm", _file(tmp_path, lines)))
    assert inside == outside
    assert inside.num_devices == 40


@pytest.mark.parametrize("names", ["gpu[1-", "gpu[x-y]", "a;b", "n[1-999999999]"])
def test_a_wrong_node_list(names: str) -> None:
    """A list that is none is refused with its name."""
    with pytest.raises(InputError) as caught:
        hosts_of_slurm({"SLURM_JOB_NODELIST": names})
    assert "SLURM_JOB_NODELIST" in str(caught.value)


def test_a_host_of_a_profile_is_a_name() -> None:
    """A profile file cannot bring a host that a shell would read as more than a word."""
    cluster = load_cluster("1x8xH100")
    document = {**cluster.to_json(), "hosts": ["a; reboot"]}
    with pytest.raises(InputError, match=r"hosts\.0"):
        ClusterProfile.from_json(document)


def test_every_node_has_a_host() -> None:
    """Names are given for all nodes or for none."""
    document = {**load_cluster("2x8xH100").to_json(), "hosts": ["a"]}
    with pytest.raises(InputError, match="1 names for 2 nodes"):
        ClusterProfile.from_json(document)


@given(st.text(alphabet="ab 1=#:\n[](),sloth", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the reader fail in another way than by naming what is wrong."""
    try:
        assert cluster_of_hosts(hosts_in(text, file="hosts"), "H100", file="hosts").hosts
    except InputError as error:
        assert error.mistakes
