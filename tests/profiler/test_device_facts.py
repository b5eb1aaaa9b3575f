"""What devices say of themselves: every answer may be missing, and none is ever made up."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import GB10, H200, L40S, SLICE, FakeDevice, FakeLibrary, install
from import_graph import ROOT

from apss_jax.schema.errors import InputError
from apss_jax.schema.machine import DeviceFacts
from profiler.device_types import library_device, type_name
from profiler.facts import Identity, device_facts, host_memory_bytes, joined, pair_facts
from profiler.nvml import Nvml


def _nvml(monkeypatch: pytest.MonkeyPatch, *devices: dict[str, Any], **kwargs: Any) -> Nvml:
    install(monkeypatch, FakeLibrary(*devices, **kwargs))
    found = Nvml.opened()
    assert found is not None
    return found


def _facts(monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], **limits: int) -> DeviceFacts:
    """Returns the facts of a machine with one device."""
    nvml = _nvml(monkeypatch, device)
    (one,) = joined([FakeDevice(0, **limits)], [0], nvml, lambda _: Identity((device["uuid"],)))
    return device_facts(one, nvml, 1)


def test_an_h200_tells_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, identity, memory, links, slot, and clocks."""
    facts = _facts(monkeypatch, H200)
    assert (facts.name, facts.nvlinks, facts.mig_enabled) == ("NVIDIA H200", 18, False)
    assert (facts.memory_bytes, facts.memory_source) == (143771 * 2**20, "NVML")
    assert (facts.pcie_generation, facts.pcie_width, facts.compute_capability) == (5, 16, (9, 0))
    assert facts.idle_state is not None
    assert facts.idle_state.max_clock_hz == pytest.approx(1.98e9)
    assert facts.idle_state.throttle_reasons == ()
    assert facts.pci_bus_id == H200["bus"]


def test_what_is_not_supported_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card without NVLink, MIG and NUMA has no answers, and never a zero in their place."""
    facts = _facts(monkeypatch, L40S)
    assert (facts.nvlinks, facts.mig_enabled, facts.numa_node) == (None, None, None)
    assert (facts.nvlink_bytes_per_s, facts.idle_state.power_w) == (None, None)


ASKED = sorted(
    name.removeprefix("_f_")
    for name in vars(FakeLibrary)
    if name.startswith("_f_nvmlDeviceGet") and "Handle" not in name and "Count" not in name
)
TOLD_BY = {  # what each question is for
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "max_pcie_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "max_pcie_width",
    "nvmlDeviceGetMigMode": "mig_enabled",
    "nvmlDeviceGetNvLinkState": "nvlinks",
    "nvmlDeviceGetPciInfo_v3": "pci_bus_id",
    "nvmlDeviceGetUUID": "uuid",
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("how", ["forbidden", "lost"])
def test_each_question_may_stay_without_answer(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is forbidden, or that a library lacks, leaves its own field unknown, no other."""
    whole = _facts(monkeypatch, H200, bytes_limit=100)
    nvml = _nvml(monkeypatch, H200, **{how: (name,)})
    (one,) = joined(
        [FakeDevice(0, bytes_limit=100)], [0], nvml, lambda _: Identity((H200["uuid"],))
    )
    found = device_facts(one, nvml, 1)
    differ = {key for key in type(whole).model_fields if getattr(found, key) != getattr(whole, key)}
    if name in TOLD_BY:
        assert differ == {TOLD_BY[name]}
        assert getattr(found, TOLD_BY[name]) is None
    elif name == "nvmlDeviceGetMemoryInfo":
        assert (found.memory_bytes, found.memory_source) == (100, "JAX's allocator")
    elif name == "nvmlDeviceGetName":
        assert found.name == "kind 0"  # as JAX calls it
    else:
        assert differ <= {"idle_state"}


def test_throttling_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older driver knows the reasons by another name, which is asked too."""
    assert _facts(monkeypatch, L40S).idle_state.throttle_reasons == ("idle", "power cap")
    older = _nvml(monkeypatch, L40S, lost=("nvmlDeviceGetCurrentClocksEventReasons",))
    assert older.state(older.handle_at(0)).throttle_reasons == ("idle", "power cap")


def test_newer_drivers_name_reasons_by_the_newer_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both names answer, the newer one counts; each bit has its word."""
    hot = {**H200, "event_reasons": 0x8 | 0x40, "reasons": 0x1}
    reasons = _facts(monkeypatch, hot).idle_state.throttle_reasons
    assert reasons == ("hardware slowdown", "hardware thermal slowdown")


def test_a_slice_without_a_place_on_the_bus_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PCI id is that of NVML or unknown."""
    assert _facts(monkeypatch, L40S).pci_bus_id == "00000000:02:00.0"
    assert _facts(monkeypatch, SLICE).pci_bus_id is None


def test_unified_memory_comes_from_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """GB10 answers "not supported" (NVIDIA/cosmos#180): JAX's own limit stands in."""
    facts = _facts(monkeypatch, GB10, bytes_limit=100)
    assert (facts.memory_bytes, facts.memory_source) == (100, "JAX's allocator")


def test_unified_memory_comes_from_the_host_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody tells, what the host has free is the device's, and marked as shared."""
    facts = _facts(monkeypatch, GB10)
    assert facts.shares_host_memory
    assert facts.memory_bytes < host_memory_bytes()


def test_a_slice_has_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MIG slice is found by its own UUID and is no library device."""
    facts = _facts(monkeypatch, SLICE)
    assert (facts.memory_bytes, facts.uuid) == (20 * 2**30, SLICE["uuid"])
    assert library_device(facts.name) is None


def test_devices_are_joined_by_identity_not_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the second card alone visible, JAX's device 0 is NVML's device 1."""
    nvml = _nvml(monkeypatch, H200, L40S)
    (one,) = joined([FakeDevice(0)], [0], nvml, lambda _: Identity((), L40S["bus"]))
    assert device_facts(one, nvml, 1).name == "NVIDIA L40S"


def test_without_identity_no_device_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two cards nobody knows which is meant; NVML's answers are left out."""
    nvml = _nvml(monkeypatch, H200, L40S)
    (one,) = joined([FakeDevice(1)], [0], nvml, lambda _: Identity())
    assert one.handle is None
    assert device_facts(one, nvml, 1).uuid is None


def test_pairs_have_topology_and_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards of a node are a pair; a card elsewhere is in none."""
    nvml = _nvml(monkeypatch, H200, L40S, topology=30)
    ids = iter([Identity((H200["uuid"],)), Identity((L40S["uuid"],)), Identity()])
    devices = joined([FakeDevice(i) for i in range(3)], [0, 0, 1], nvml, lambda _: next(ids))
    (pair,) = pair_facts(devices, nvml)
    assert (pair.devices, pair.topology, pair.nvlink_peer) == ((0, 1), "host bridge", True)


def test_without_nvml_there_are_still_facts() -> None:
    """A CPU, an AMD device, WSL: the device has the name and memory that are known."""
    (one,) = joined([FakeDevice(0, platform="cpu")], [0], None)
    facts = device_facts(one, None, 2)
    assert (facts.name, facts.memory_bytes) == ("kind 0", host_memory_bytes() // 2)


def test_no_library_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVIDIA's library has no NVML."""
    install(monkeypatch, FakeLibrary(init_status=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert Nvml.opened() is None


def test_a_driver_mismatch_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can run on such a machine (rapidsai/dask-cuda#949): the remedy is named."""
    install(monkeypatch, FakeLibrary(init_status=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    with pytest.raises(InputError, match="Reboot or reload"):
        Nvml.opened()


def test_a_wrong_call_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real wrapper runs above the fake: a name that it lacks is an error, not None."""
    nvml = _nvml(monkeypatch, H200)
    with pytest.raises(AttributeError):
        nvml._ask(nvml.api.nvmlDeviceGetNoSuchThing, nvml.handle_at(0))


@pytest.mark.parametrize(
    ("driver_name", "library_name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla T4", "T4-16GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_drivers_names_are_library_devices(driver_name: str, library_name: str) -> None:
    """What a driver calls a card is the library's device."""
    assert type_name(driver_name, "gpu") == library_name


def test_an_unknown_card_keeps_its_name() -> None:
    """A card that the library lacks is not taken for another one."""
    assert type_name("NVIDIA GeForce RTX 5090", "gpu") == "NVIDIA GeForce RTX 5090"


def test_memory_without_meminfo_is_unknown(tmp_path: Path) -> None:
    """Another operating system: None, never 0."""
    assert host_memory_bytes(file=tmp_path / "none") is None


def test_the_dependency_is_the_maintained_package() -> None:
    """The module pynvml comes from nvidia-ml-py; the package pynvml is deprecated."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[^\w-]", text)[0] for text in project["dependencies"]]
    assert "nvidia-ml-py" in names
    assert "pynvml" not in names
