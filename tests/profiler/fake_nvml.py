"""A fake libnvidia-ml below the real pynvml: its wrapper code runs, only the library is ours.

A function that is not here is missing from the library; what a device lacks is not supported.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

H200: dict[str, Any] = {
    "name": "NVIDIA H200", "memory": 143771 * 2**20, "nvlinks": [1] * 18, "pcie": (5, 16),
    "most_pcie": (5, 16), "capability": (9, 0), "mig": 0, "clock": 1980, "event_reasons": 0,
    "uuid": "GPU-00000000-0000-0000-0000-000000000001", "bus": "00000000:01:00.0",
}  # fmt: skip
L40S: dict[str, Any] = {
    "name": "NVIDIA L40S", "memory": 46068 * 2**20, "pcie": (4, 8), "most_pcie": (4, 16),
    "capability": (8, 9), "clock": 2520, "reasons": 0x4 | 0x1,
    "uuid": "GPU-00000000-0000-0000-0000-000000000002", "bus": "00000000:02:00.0",
}  # fmt: skip
GB10: dict[str, Any] = {
    "name": "NVIDIA GB10", "capability": (12, 1),
    "uuid": "GPU-00000000-0000-0000-0000-000000000003", "bus": "00000000:03:00.0",
}  # fmt: skip
SLICE: dict[str, Any] = {
    "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "memory": 20 * 2**30, "mig": 1,
    "uuid": "MIG-00000000-0000-0000-0000-000000000004",
}  # fmt: skip


class Function:
    """A function of a C library as ctypes shows it."""

    def __init__(self, call: Callable[..., int | None]) -> None:
        self.call, self.restype, self.argtypes = call, None, None

    def __call__(self, *arguments: Any) -> int:
        """Returns the status code."""
        return self.call(*arguments) or pynvml.NVML_SUCCESS


def _target(pointer: Any) -> Any:
    return pointer._obj if hasattr(pointer, "_obj") else pointer.contents


class FakeLibrary:
    """Stands where `ctypes.CDLL("libnvidia-ml.so.1")` would."""

    def __init__(
        self,
        *devices: dict[str, Any],
        init_status: int = 0,
        topology: int = 10,
        lost: tuple[str, ...] = (),  # functions that an older library lacks
        forbidden: tuple[str, ...] = (),  # functions that a container or an administrator forbids
    ) -> None:
        self.devices, self.init_status, self.level = devices, init_status, topology
        self.lost, self.forbidden = lost, forbidden

    def __getattr__(self, name: str) -> Function:
        """Returns a function; the wrapper takes `AttributeError` for one that is missing."""
        if name.startswith("_") or name in self.lost or not hasattr(type(self), f"_f_{name}"):
            raise AttributeError(name)
        if name in self.forbidden:
            return Function(lambda *_: int(pynvml.NVML_ERROR_NO_PERMISSION))
        return Function(getattr(self, f"_f_{name}"))

    def _device(self, handle: Any) -> dict[str, Any]:
        return self.devices[int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1]

    def _give(self, handle: Any, key: str, pointer: Any, index: int | None = None) -> int:
        value = self._device(handle).get(key)
        if value is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        _target(pointer).value = value if index is None else value[index]
        return 0

    def _handle(self, index: int, pointer: Any) -> int:
        if not 0 <= index < len(self.devices):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        place = ctypes.cast(ctypes.addressof(_target(pointer)), ctypes.POINTER(ctypes.c_void_p))
        place[0] = index + 1
        return 0

    def _find(self, key: str, text: bytes, pointer: Any) -> int:
        texts = [str(device.get(key)).encode() for device in self.devices]
        return self._handle(texts.index(text) if text in texts else -1, pointer)

    def _f_nvmlInitWithFlags(self, flags: Any) -> int:
        return self.init_status

    _f_nvmlInit_v2 = _f_nvmlShutdown = lambda self, *_: self.init_status

    def _f_nvmlErrorString(self, status: int) -> bytes:
        return b"fake error"

    def _f_nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> None:
        text.value = b"570.86.15"

    def _f_nvmlDeviceGetCount_v2(self, count: Any) -> None:
        _target(count).value = len(self.devices)

    def _f_nvmlDeviceGetHandleByIndex_v2(self, index: Any, pointer: Any) -> int:
        return self._handle(getattr(index, "value", index), pointer)

    def _f_nvmlDeviceGetHandleByUUID(self, text: Any, pointer: Any) -> int:
        return self._find("uuid", getattr(text, "value", text), pointer)

    def _f_nvmlDeviceGetHandleByPciBusId_v2(self, text: Any, pointer: Any) -> int:
        return self._find("bus", getattr(text, "value", text), pointer)

    def _f_nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> None:
        text.value = self._device(handle)["name"].encode()

    def _f_nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> None:
        text.value = self._device(handle)["uuid"].encode()

    def _f_nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> int:
        memory = self._device(handle).get("memory")
        if memory is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        _target(info).total, _target(info).used = memory, memory  # all taken, as JAX would
        return 0

    def _f_nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        return self._give(handle, "capability", major, 0) or self._give(
            handle, "capability", minor, 1
        )

    def _f_nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, state: Any) -> int:
        links, number = self._device(handle).get("nvlinks"), getattr(link, "value", link)
        if links is not None and number >= len(links):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._give(handle, "nvlinks", state, number)

    def _f_nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        return self._give(handle, "pcie", value, 0)

    def _f_nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, value: Any) -> int:
        return self._give(handle, "pcie", value, 1)

    def _f_nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:
        return self._give(handle, "most_pcie", value, 0)

    def _f_nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any, value: Any) -> int:
        return self._give(handle, "most_pcie", value, 1)

    def _f_nvmlDeviceGetMigMode(self, handle: Any, now: Any, later: Any) -> int:
        return self._give(handle, "mig", now)

    def _f_nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, value: Any) -> int:
        return self._give(handle, "clock", value)

    _f_nvmlDeviceGetMaxClockInfo = _f_nvmlDeviceGetClockInfo

    def _f_nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, value: Any) -> int:
        return self._give(handle, "reasons", value)

    def _f_nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, value: Any) -> int:
        return self._give(handle, "event_reasons", value)

    def _f_nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        bus = self._device(handle).get("bus")
        if bus is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        _target(info).busId = bus.encode()
        return 0

    def _f_nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, level: Any) -> None:
        _target(level).value = self.level

    def _f_nvmlDeviceGetP2PStatus(self, one: Any, other: Any, index: Any, status: Any) -> None:
        _target(status).value = pynvml.NVML_P2P_STATUS_OK


def install(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary) -> None:
    """Puts the library below the wrapper for one test."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)


class FakeDevice:
    """A device as JAX shows it."""

    def __init__(self, number: int, platform: str = "gpu", **limits: int) -> None:
        self.id = self.local_hardware_id = number
        self.platform, self.process_index, self.device_kind = platform, 0, f"kind {number}"
        self._limits = limits

    def memory_stats(self) -> dict[str, int]:
        """Returns what the allocator counts."""
        return self._limits
