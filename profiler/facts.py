"""What devices say of themselves: NVML's answers joined to the devices that JAX runs on."""

from __future__ import annotations

import ctypes
import os
import uuid as uuids
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from apss_jax.schema.machine import DeviceFacts, DeviceState, Machine, PairFacts
from apss_jax.units import KIB
from profiler.nvml import Handle, Nvml

MEMINFO: Final = Path("/proc/meminfo")
# Variables that change what is measured; paths, addresses and names of people are not among them.
VARIABLE_STARTS: Final = ("NCCL_", "XLA_", "JAX_PLATFORM", "CUDA_VISIBLE", "OMP_NUM", "TF_GPU")
LONGEST_VALUE: Final = 200


@dataclass(frozen=True)
class Identity:
    """What tells a device apart from all others, whatever its number."""

    uuids: tuple[str, ...] = ()  # as NVML would spell it: a device's or a MIG slice's
    pci_bus_id: str | None = None


IdentityFn = Callable[[Any], Identity]
"""Returns the identity of a JAX device."""


def cuda_identity(device: Any) -> Identity:
    """Returns who a JAX device is, asked of the CUDA driver by the number that JAX uses.

    NVML counts all devices of a machine and CUDA those that CUDA_VISIBLE_DEVICES leaves, in another
    order at times; so numbers are never compared.
    """
    number = getattr(device, "local_hardware_id", None)
    if device.platform != "gpu" or number is None:
        return Identity()
    try:
        return _asked_of_driver(ctypes.CDLL("libcuda.so.1"), int(number))
    except (OSError, AttributeError):  # no such library, or one without these functions
        return Identity()


def _asked_of_driver(library: Any, number: int) -> Identity:
    handle, raw, bus = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(32)
    library.cuInit(0)
    if library.cuDeviceGet(ctypes.byref(handle), number):
        return Identity()
    found: tuple[str, ...] = ()
    if not library.cuDeviceGetUuid_v2(ctypes.byref(raw), handle):
        text = str(uuids.UUID(bytes=bytes(raw)))
        found = (f"MIG-{text}", f"GPU-{text}")
    failed = library.cuDeviceGetPCIBusId(bus, len(bus), handle)
    return Identity(found, None if failed else bus.value.decode())


@dataclass(frozen=True)
class Joined:
    """A device of JAX with its number and node in the cluster, and NVML's handle of it."""

    device: Any
    number: int
    node: int
    handle: Handle | None


def joined(
    devices: Sequence[Any],
    node_of_device: Sequence[int],
    nvml: Nvml | None,
    identity: IdentityFn = cuda_identity,
) -> list[Joined]:
    """Returns the devices with their handles; None for those of other hosts and for non-NVIDIA."""
    return [
        Joined(device, number, node, _handle(device, nvml, identity))
        for number, (device, node) in enumerate(zip(devices, node_of_device, strict=True))
    ]


def _handle(device: Any, nvml: Nvml | None, identity: IdentityFn) -> Handle | None:
    if nvml is None or device.platform != "gpu":
        return None
    who = identity(device)
    found = nvml.handle(who.uuids, who.pci_bus_id)
    if found is None and nvml.count() == 1 and not (who.uuids or who.pci_bus_id):
        return nvml.handle_at(0)  # one device on the machine: no doubt which
    return found


def device_facts(one: Joined, nvml: Nvml | None, devices_of_host: int) -> DeviceFacts:
    """Returns what is known of a device; `devices_of_host` share a host's memory where they do."""
    memory, source, shared = _memory(one, nvml, devices_of_host)
    common: dict[str, Any] = {
        "device": one.number,
        "node": one.node,
        "memory_bytes": memory,
        "memory_source": source,
        "shares_host_memory": shared,
    }
    if nvml is None or one.handle is None:
        return DeviceFacts(name=getattr(one.device, "device_kind", None), **common)
    handle = one.handle
    generation, width = nvml.pcie(handle)
    most_generation, most_width = nvml.pcie(handle, most=True)
    return DeviceFacts(
        name=nvml.name(handle) or getattr(one.device, "device_kind", None),
        uuid=nvml.uuid(handle),
        pci_bus_id=nvml.pci_bus_id(handle),
        compute_capability=nvml.compute_capability(handle),
        nvlinks=nvml.nvlinks(handle),
        nvlink_bytes_per_s=nvml.nvlink_bytes_per_s(handle),
        pcie_generation=generation,
        pcie_width=width,
        max_pcie_generation=most_generation,
        max_pcie_width=most_width,
        numa_node=nvml.numa_node(handle),
        mig_enabled=nvml.mig_enabled(handle),
        idle_state=nvml.state(handle),
        **common,
    )


def _memory(
    one: Joined, nvml: Nvml | None, devices_of_host: int
) -> tuple[int | None, str | None, bool | None]:
    """Returns a device's memory, who says so, and whether the host uses it too."""
    if one.device.platform == "cpu":
        host = host_memory_bytes()
        return (host // devices_of_host if host else None), "the host's, shared evenly", True
    told = nvml.memory_bytes(one.handle) if nvml is not None and one.handle is not None else None
    if told:
        return told, "NVML", False
    # GB10 and Jetson: NVML has no answer, since device and host share one memory.
    limit = (memory_stats(one.device) or {}).get("bytes_limit")
    if limit:
        return int(limit), "JAX's allocator", None
    # What the host holds already, a device that shares its memory cannot have.
    free = host_memory_bytes("MemAvailable")
    return (free // devices_of_host, "what the host has free", True) if free else (None,) * 3


def memory_stats(device: Any) -> dict[str, int] | None:
    """Returns the allocator's figures, None where the platform keeps none."""
    try:
        return device.memory_stats()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def host_memory_bytes(field: str = "MemTotal", file: Path = MEMINFO) -> int | None:
    """Returns the host's memory, or another figure of the kernel's list."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    total = next((line.split()[1] for line in lines if line.startswith(f"{field}:")), None)
    return None if total is None else round(int(total) * KIB)


def pair_facts(devices: Sequence[Joined], nvml: Nvml | None) -> tuple[PairFacts, ...]:
    """Returns how devices of one node are joined, for pairs of which anything is known."""
    if nvml is None:
        return ()
    found = []
    for one, other in combinations(devices, 2):
        if one.node != other.node or one.handle is None or other.handle is None:
            continue
        topology = nvml.topology(one.handle, other.handle)
        peer = nvml.nvlink_peer(one.handle, other.handle)
        if topology is not None or peer is not None:
            pair = (one.number, other.number)
            found.append(PairFacts(devices=pair, topology=topology, nvlink_peer=peer))
    return tuple(found)


def device_state(one: Joined, nvml: Nvml | None) -> DeviceState | None:
    """Returns how a device runs at this moment."""
    return None if nvml is None or one.handle is None else nvml.state(one.handle)


def load_average() -> float | None:
    """Returns how many processes were runnable in the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def machine_facts(nvml: Nvml | None) -> Machine:
    """Returns the computer at hand, its software and the settings that change what it does."""
    from importlib.metadata import version

    import jax

    versions = {"jax": jax.__version__, "jaxlib": version("jaxlib")}
    driver = nvml.driver_version() if nvml is not None else None
    if driver:
        versions["nvidia driver"] = driver
    return Machine(
        cores=os.cpu_count(),
        load_before=load_average(),
        host_memory_bytes=host_memory_bytes(),
        versions=versions,
        environment={
            name: value[:LONGEST_VALUE]
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLE_STARTS)
        },
    )
