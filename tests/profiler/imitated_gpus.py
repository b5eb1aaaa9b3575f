"""GPUs that are imitated from below: fake drivers say what they are, this machine's CPU computes.

Nothing of the profiler is replaced: JAX shows devices that call themselves GPUs, NVML and CUDA are
libraries of ours, and whatever runs on such a device runs on a CPU device of JAX.
"""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from fake_nvml import FakeLibrary, install


class ImitatedGpu:
    """A device of JAX that calls itself a GPU."""

    platform = "gpu"

    def __init__(self, real: Any, number: int, local_number: int, kind: str) -> None:
        self.real, self.device_kind = real, kind
        self.id, self.local_hardware_id = number, local_number
        self.process_index = real.process_index

    def memory_stats(self) -> dict[str, int] | None:
        """Returns what the CPU's allocator counts: nothing."""
        return self.real.memory_stats()


class FakeCuda:
    """Stands where `ctypes.CDLL("libcuda.so.1")` would: devices by number, with their identity."""

    def __init__(self, devices: Sequence[dict[str, Any]]) -> None:
        self.devices = devices

    def cuInit(self, flags: int) -> int:
        """Returns success."""
        return 0

    def cuDeviceGet(self, handle: Any, number: int) -> int:
        """Gives a device by its number."""
        handle._obj.value = number
        return 0 if number < len(self.devices) else 101

    def cuDeviceGetUuid_v2(self, raw: Any, handle: Any) -> int:
        """Gives the sixteen bytes of a device's UUID."""
        text = self.devices[handle.value]["uuid"].partition("-")[2]
        raw._obj[:] = list(uuid.UUID(text).bytes)
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, size: int, handle: Any) -> int:
        """Gives the place on the bus."""
        bus = self.devices[handle.value].get("bus")
        text.value = (bus or "").encode()
        return 0 if bus else 1


def imitate(
    monkeypatch: pytest.MonkeyPatch, own: Sequence[dict[str, Any]], kinds: Sequence[str]
) -> None:
    """Makes this process see GPUs: `own` as its drivers do, of `kinds` all devices of the run."""
    real_cdll, real_default, real_devices = ctypes.CDLL, jax.default_device, jax.devices
    cuda = FakeCuda(own)
    install(monkeypatch, FakeLibrary(*own))
    monkeypatch.setattr(
        ctypes, "CDLL", lambda name, *a, **k: cuda if "cuda" in name else real_cdll(name, *a, **k)
    )

    def devices() -> list[ImitatedGpu]:
        real, found = real_devices(), []
        for number, kind in enumerate(kinds):
            device = real[min(number, len(real) - 1)]  # one may stand for several
            beside = sum(one.process_index == device.process_index for one in found)
            found.append(ImitatedGpu(device, number, beside, kind))
        return found

    # Only for the profiler: JAX's own meetings of processes ask for devices too.
    shown = SimpleNamespace(devices=devices, process_count=jax.process_count)
    monkeypatch.setattr("profiler.processes.jax", shown)
    monkeypatch.setattr(
        jax, "default_device", lambda device: real_default(getattr(device, "real", device))
    )
