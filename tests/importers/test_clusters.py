"""Clusters, devices and stacks by name, file and shorthand."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from apss_jax.importers.clusters import (
    list_clusters,
    list_devices,
    list_stacks,
    load_cluster,
    load_device,
    load_link,
    load_stack,
)
from apss_jax.importers.library import LIBRARY, library_names
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile, Device, LinkFile
from apss_jax.schema.document import Document, read_document
from apss_jax.schema.errors import InputError
from apss_jax.schema.stack import Stack

SHARED = Path(__file__).parents[3] / "shared" / "data"
KINDS: dict[str, type[Document]] = {
    "devices": Device,
    "links": LinkFile,
    "clusters": ClusterProfile,
    "stacks": Stack,
}
FILES = [(folder, name) for folder in KINDS for name in library_names(folder)]


def _shared_rows(path: str) -> list[dict[str, str]]:
    file = SHARED / path
    if not file.exists():
        pytest.skip("the compiled data is not beside this checkout")
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def _error(load: Callable[[str], object], spec: str) -> str:
    with pytest.raises(InputError) as caught:
        load(spec)
    (found,) = caught.value.mistakes
    assert found.key
    assert found.remedy
    return found.sentence()


@pytest.mark.parametrize(("folder", "name"), FILES)
def test_every_library_file_survives_a_round_trip(folder: str, name: str) -> None:
    """Each file is read, bears its own name, and is written back as the same document."""
    document = read_document(KINDS[folder], LIBRARY / folder / f"{name}.json")
    assert document.to_json()["name"] == name
    assert type(document).from_json(document.to_json()) == document


def test_the_library_is_large_enough() -> None:
    """Twelve clusters and more, the eight stacks that launchers imply, every class of GPU."""
    assert len(list_clusters()) >= 12
    stacks = {"generic", "megatron", "deepspeed", "nemo", "nanotron", "fsdp", "maxtext", "jax"}
    assert stacks <= set(list_stacks())
    assert {"V100-SXM2-32GB", "A10G-24GB", "L40S-48GB", "MI300X"} <= set(list_devices())


@pytest.mark.parametrize("name", list_devices())
def test_a_device_names_links_that_exist(name: str) -> None:
    """What shorthand assumes around a device is in the library, and each figure has a source."""
    device = load_device(name)
    links = [device.intra_link, device.network, device.small_node_link or device.intra_link]
    assert all(load_link(link).source for link in links)
    assert device.device_type.source
    assert device.device_type.rates.source


def test_every_datasheet_row_has_its_device() -> None:
    """Each GPU of the compiled datasheets is there, with its bandwidth and half-precision peak."""
    rows = [row for row in _shared_rows("hardware.csv") if row["category"] == "datasheet"]
    assert len(rows) > 20
    for row in rows:
        found = load_device(row["name"]).device_type
        peak = found.peak_flops_per_s.get("fp16")
        assert found.memory_bytes_per_s == float(row["hbm_GB_per_s"]) * 1e9
        assert peak == (float(row["peak_fp16_tflops_dense"] or 0) * 1e12 or None)
        assert 0.9 < found.memory_bytes / (float(row["hbm_gb"]) * 1e9) < 1.08


def test_no_two_devices_share_a_name() -> None:
    """An alias means one device, whatever its case."""
    devices = [load_device(name) for name in list_devices()]
    names = [n.casefold() for device in devices for n in (device.name, *device.aliases)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("A100", "A100-SXM4-80GB"),
        ("h100", "H100-SXM5-80GB"),
        ("H200", "H200-SXM-141GB"),
        ("v100", "V100-SXM2-16GB"),
        ("T4", "T4-16GB"),
        ("B200", "B200-SXM-180GB"),
        ("gb200", "GB200-NVL72"),
        ("mi300x", "MI300X"),
        ("H100-SXM5-80GB (700W)", "H100-SXM5-80GB"),
    ],
)
def test_an_alias_finds_its_device(alias: str, name: str) -> None:
    """Short names work in any case, and remarks in parentheses do not matter."""
    assert load_device(alias).name == name


def test_a_precision_without_a_rate_is_said_in_words() -> None:
    """A device without units for a precision differs from one whose rate is not known."""
    v100, odd = load_device("V100"), load_device("H100-96GB")
    assert v100.device_type.precision_problem(v100.name, "fp16") is None
    assert "has no fast bf16 units; it has fp16, fp32" in str(
        v100.device_type.precision_problem(v100.name, "bf16")
    )
    message = str(odd.device_type.precision_problem(odd.name, "bf16"))
    assert "the peak bf16 rate of H100-SXM-96GB-HBM2e is not known" in message


def test_shorthand_is_nodes_times_gpus() -> None:
    """`4x8xH100` is 4 nodes of 8, and what it leaves open stands in the notes."""
    cluster = load_cluster("4x8xH100")
    (group,) = cluster.nodes
    assert (group.count, group.devices, group.device_type) == (4, 8, "H100-SXM5-80GB")
    assert cluster.num_devices == 32
    assert any("ndr400" in note for note in cluster.notes)
    assert any("taken to mean H100-SXM5-80GB" in note for note in cluster.notes)


def test_shorthand_joins_different_nodes() -> None:
    """Parts keep their order, their own counts and their own links."""
    cluster = load_cluster("3x4xV100-SXM2-16GB + 1x2xT4-16GB")
    assert [(g.count, g.devices, g.device_type) for g in cluster.nodes] == [
        (3, 4, "V100-SXM2-16GB"),
        (1, 2, "T4-16GB"),
    ]
    assert cluster.used_types == ("V100-SXM2-16GB", "T4-16GB")
    assert cluster.num_devices == 14


def test_shorthand_without_nodes_is_one_node() -> None:
    """`8xH100` means one node of 8, and says so."""
    cluster = load_cluster("8xH100")
    assert [(g.count, g.devices) for g in cluster.nodes] == [(1, 8)]
    assert any("one node of 8" in note for note in cluster.notes)


@pytest.mark.parametrize(
    ("spec", "nodes_per_domain"),
    [("18x4xGB200", 18), ("36x2xGB200", 36), ("1x72xGB200-NVL72", 1), ("4x8xH100", 1)],
)
def test_a_gb200_domain_holds_72_devices(spec: str, nodes_per_domain: int) -> None:
    """However many GPUs a node has, 72 of them share NVLink; on other devices a node does."""
    assert load_cluster(spec).nodes[0].nodes_per_domain == nodes_per_domain


def test_eight_racks_are_eight_domains() -> None:
    """The shipped cluster of 8 NVL72 racks has 144 nodes in domains of 18."""
    (group,) = load_cluster("gb200-nvl72-8").nodes
    assert group.count / group.nodes_per_domain == 8
    assert group.devices * group.nodes_per_domain == 72


def test_uneven_nodes_are_an_ordinary_cluster() -> None:
    """Nodes of 8, 4 and 2 devices stand in one file."""
    cluster = load_cluster("uneven-a100")
    assert [group.devices for group in cluster.nodes] == [8, 4, 2]
    assert cluster.num_devices == 14


def test_only_used_links_are_in_a_file() -> None:
    """A shipped cluster lists no device type and no link that no node uses."""
    for name in list_clusters():
        cluster = load_cluster(name)
        used = {link for g in cluster.nodes for link in (g.intra_link, g.network)}
        assert set(cluster.links) == used | {bridge.link for bridge in cluster.bridges}
        assert set(cluster.device_types) == set(cluster.used_types)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("0x8xH100", "has 0 nodes"),
        ("4x0xH100", "has 0 GPUs in a node"),
        ("-4x8xH100", "has -4 nodes"),
        ("4x-8xH100", "has -8 GPUs"),
        ("4x8xH1OO", "Did you mean H100"),
        ("4x8xB9000", "is not a device of the library"),
        ("4x8x", "is not a device of the library"),
        ("4x8xH100+", "has an empty part"),
        ("+", "has an empty part"),
        ("4x8xH100+nothing", "'nothing', which is not nodes x GPUs x device"),
        ("4x8xH100+2x4xB9000", "is not a device of the library"),
        ("2000000x8xH100", "has 16000000 devices, more than 1000000"),
        ("9" * 5000 + "x8xH100", "has a number of nodes of 5000 digits"),
        ("1.5x8xH100", "is not a cluster of the library"),
        ("nanx8xH100", "is not a cluster of the library"),
        ("H100", "is a device, not a cluster"),
        ("dgx-h100", "Did you mean dgx-h100-"),
        ("no-such-cluster", "One of: amp-het-cluster"),
        ("no/such/file", "No such file"),
        ("missing.json", "No such file"),
        ("nul\0byte", "is not a cluster of the library"),
        ("x" * 5000, "is not a cluster of the library"),
    ],
)
def test_wrong_shorthand_is_one_message(spec: str, said: str) -> None:
    """Each mistake names the flag, what is wrong and what to write instead."""
    assert said in _error(load_cluster, spec)


def _profile() -> dict[str, object]:
    return load_cluster("1x8xA100").to_json()


def _spoiled(**changes: object) -> str:
    return json.dumps({**_profile(), **changes})


GROUP = {"devices": 8, "device_type": "A100-SXM4-80GB", "intra_link": "nvlink3"}
JOINED = {**GROUP, "network": "hdr200"}
WRONG_FILES = {
    "truncated": (_spoiled()[:200], "is not JSON"),
    "not an object": ("[]", "must be a JSON object"),
    "another schema": (_spoiled(schema="apss.plan/1"), "must be 'apss.cluster_profile/1'"),
    "no nodes": (_spoiled(nodes=[]), "nodes"),
    "unknown key": (_spoiled(colour="red"), "colour"),
    "no links": (_spoiled(links={}), "names 'nvlink3'"),
    "unknown link": (_spoiled(nodes=[{**JOINED, "network": "tin-cans"}]), "names 'tin-cans'"),
    "0 devices": (_spoiled(nodes=[{**JOINED, "devices": 0}]), "devices"),
    "missing network": (_spoiled(nodes=[GROUP]), "nodes.0.network"),
    "too many devices": (_spoiled(nodes=[{**JOINED, "count": 10**9}]), "more than 1000000"),
    "a bridge to itself": (
        _spoiled(bridges=[{"groups": [0, 0], "link": "hdr200"}]),
        "two different groups",
    ),
    "bridge to nowhere": (
        _spoiled(bridges=[{"groups": [0, 7], "link": "hdr200"}]),
        "a node group that does not exist",
    ),
    "a rate of NaN": (
        _spoiled().replace('"bytes_per_s": 300000000000.0', '"bytes_per_s": NaN', 1),
        "holds NaN",
    ),
    "a negative rate": (
        _spoiled().replace('"bytes_per_s": 300000000000.0', '"bytes_per_s": -1.0', 1),
        "links.nvlink3.bytes_per_s",
    ),
    "a rate in words": (
        _spoiled().replace('"bytes_per_s": 300000000000.0', '"bytes_per_s": "fast"', 1),
        "links.nvlink3.bytes_per_s",
    ),
    "a fraction above 1": (
        _spoiled().replace('"reached_fraction": 0.757', '"reached_fraction": 1.2', 1),
        "reached_fraction",
    ),
    "rated and unsupported": (_spoiled().replace('"fp8"', '"bf16"', 1), "both name ['bf16']"),
}


@pytest.mark.parametrize("case", WRONG_FILES)
def test_a_wrong_file_is_one_message(case: str, tmp_path: Path) -> None:
    """Each mistake names the file, the key, the rule and the remedy."""
    text, said = WRONG_FILES[case]
    file = tmp_path / "cluster.json"
    file.write_text(text)
    message = _error(load_cluster, str(file))
    assert said in message
    assert message.startswith(str(file))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    """A directory is no profile."""
    assert "is a directory" in _error(load_cluster, str(tmp_path))


def test_a_copy_of_a_shipped_cluster_is_the_same_cluster(tmp_path: Path) -> None:
    """A profile file read by its path equals the library's."""
    file = tmp_path / "mine.json"
    file.write_bytes((LIBRARY / "clusters" / "dgx-a100-4.json").read_bytes())
    assert load_cluster(file) == load_cluster("DGX-A100-4")


def test_a_stack_is_found_by_name_and_by_file(tmp_path: Path) -> None:
    """Stacks work like clusters; an unknown one lists what there is."""
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(load_stack("megatron").to_json()))
    assert load_stack(file) == load_stack("Megatron")
    assert "Did you mean megatron" in _error(load_stack, "megatrom")
    assert _error(load_stack, "").startswith("--stack")


def test_stacks_say_where_they_come_from() -> None:
    """Every stack names its runs, and an unknown framework is trusted least.

    One known framework has wider step times: many of nanotron's published runs are slow for no
    reason that their columns tell.
    """
    stacks = [load_stack(name) for name in list_stacks()]
    assert all(
        "itted by `make fit`" in stack.source and "nterval" in stack.source for stack in stacks
    )
    known = [stack for stack in stacks if stack.name != "nanotron"]
    assert max(known, key=lambda stack: stack.step_time_error_fraction).name == "generic"
    assert max(stacks, key=lambda stack: stack.memory_error_fraction).name == "generic"


def test_amp_times_are_amps_own() -> None:
    """Layer times of the shipped clusters are means over AMP's measured rows."""
    rows = [r for r in _shared_rows("amp/known_cost.csv") if r["model"] == "gpt2"]
    for measured in load_cluster("amp-het-cluster").measurements:
        device = measured.device_type.split("-")[0]
        wanted = (device, str(measured.tensor_parallel))
        own = [r for r in rows if (r["device"], r["tp"]) == wanted]
        per_layer = {int(r["layer_index"]): float(r["forward_s_per_sample"]) for r in own}
        ends = {"embedding": range(2), "layer": range(2, 26), "head": range(26, 30)}
        part = [per_layer[index] for index in ends[measured.shape]]
        expected = sum(part) / (24 if measured.shape == "layer" else 1)
        assert measured.forward_s == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", ["amp-homogeneous", "amp-het-cluster", "amp-het-model"])
def test_amp_clusters_are_sixteen_devices_with_three_tensor_degrees(name: str) -> None:
    """4 nodes of 4; embedding, layer and head at tensor degrees 1, 2 and 4 of every device."""
    cluster = load_cluster(name)
    assert cluster.num_devices == 16
    found = {(m.device_type, m.shape, m.tensor_parallel) for m in cluster.measurements}
    shapes = ("embedding", "layer", "head")
    assert found == {(d, s, t) for d in cluster.used_types for s in shapes for t in (1, 2, 4)}
    assert all(m.tensor_comm_included and m.backward_s is None for m in cluster.measurements)


def test_amp_measured_the_layer_of_its_model() -> None:
    """The measured shape is the layer of the library's GPT-2 345M, so its times are found."""
    model = load_model("gpt2-345m-amp")
    shape = load_cluster("amp-homogeneous").shapes["layer"]
    assert shape.layer == model.layer_sequence[0]
    assert shape.hidden_size == model.hidden_size
