"""NVML through pynvml. Every call may be unsupported or forbidden: then the answer is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apss_jax.schema.errors import mistake
from apss_jax.schema.machine import DeviceState
from apss_jax.units import MB

Handle = Any
"""A device as NVML knows it."""

MHZ: Final = 1e6
MILLIWATT: Final = 1e-3
MOST_LINKS: Final = 36  # NVLinks of a device that NVML has names for
# Why clocks are below their maximum, by bit (nvml.h, nvmlClocksEventReasons).
REASONS: Final = {
    0x1: "idle",
    0x2: "clocks set by the user",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
TOPOLOGIES: Final = {
    0: "internal",
    10: "single switch",
    20: "several switches",
    30: "host bridge",
    40: "node",
    50: "system",
}


@dataclass(frozen=True)
class Nvml:
    """An open NVML; `Nvml.opened` is the way in."""

    api: Any  # the module pynvml

    @staticmethod
    def opened() -> Nvml | None:
        """Returns NVML, or None where there is none: CPU, AMD, Jetson, WSL.

        Raises `InputError` where driver and library do not match: nothing on such a machine runs.
        """
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
                rule = "the NVIDIA driver and its library have different versions"
                remedy = "Reboot or reload the driver; in a container, mount the host's library"
                raise mistake("(NVML)", "", rule, remedy) from None
            return None
        return Nvml(pynvml)

    def close(self) -> None:
        """Ends the session."""
        self._ask(self.api.nvmlShutdown)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what a call answers, None where the device or the driver does not."""
        try:
            return call(*arguments)
        except self.api.NVMLError:
            return None

    def handle(self, uuids: Sequence[str], pci_bus_id: str | None) -> Handle | None:
        """Returns a device by one of its UUIDs (a MIG slice has its own), else by its PCI id."""
        for uuid in uuids:
            found = self._ask(self.api.nvmlDeviceGetHandleByUUID, uuid)
            if found is not None:
                return found
        if pci_bus_id is None:
            return None
        return self._ask(self.api.nvmlDeviceGetHandleByPciBusId, pci_bus_id)

    def handle_at(self, index: int) -> Handle | None:
        """Returns a device by NVML's own number, which ignores CUDA_VISIBLE_DEVICES."""
        return self._ask(self.api.nvmlDeviceGetHandleByIndex, index)

    def count(self) -> int:
        """Returns the number of devices that NVML shows, MIG slices apart."""
        return self._ask(self.api.nvmlDeviceGetCount) or 0

    def driver_version(self) -> str | None:
        """Returns the version of the driver."""
        return _text(self._ask(self.api.nvmlSystemGetDriverVersion))

    def name(self, handle: Handle) -> str | None:
        """Returns the product name."""
        return _text(self._ask(self.api.nvmlDeviceGetName, handle))

    def uuid(self, handle: Handle) -> str | None:
        """Returns the identity of a device or of a MIG slice."""
        return _text(self._ask(self.api.nvmlDeviceGetUUID, handle))

    def pci_bus_id(self, handle: Handle) -> str | None:
        """Returns the place on the PCI bus."""
        info = self._ask(self.api.nvmlDeviceGetPciInfo, handle)
        return None if info is None else _text(info.busId)

    def memory_bytes(self, handle: Handle) -> int | None:
        """Returns the whole memory. What is *used* says nothing: JAX reserves ahead of need."""
        info = self._ask(self.api.nvmlDeviceGetMemoryInfo, handle)
        return None if info is None or not info.total else int(info.total)

    def compute_capability(self, handle: Handle) -> tuple[int, int] | None:
        """Returns major and minor version of the architecture."""
        found = self._ask(self.api.nvmlDeviceGetCudaComputeCapability, handle)
        return None if found is None else (int(found[0]), int(found[1]))

    def nvlinks(self, handle: Handle) -> int | None:
        """Returns how many NVLinks are up; None where the device has none to ask about."""
        states = []
        for link in range(MOST_LINKS):
            state = self._ask(self.api.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:  # not supported at all, or past the last link
                break
            states.append(bool(state))
        return sum(states) if states else None

    def nvlink_bytes_per_s(self, handle: Handle) -> float | None:
        """Returns the rate of the first NVLink, one way."""
        field = (self.api.NVML_FI_DEV_NVLINK_GET_SPEED, 0)
        values = self._ask(self.api.nvmlDeviceGetFieldValues, handle, [field])
        if not values or values[0].nvmlReturn != self.api.NVML_SUCCESS:
            return None
        return float(values[0].value.uiVal) * MB or None

    def pcie(self, handle: Handle, *, most: bool = False) -> tuple[int | None, int | None]:
        """Returns generation and width of the PCIe link, as it is or at most."""
        api = self.api
        generation = api.nvmlDeviceGetMaxPcieLinkGeneration if most else (
            api.nvmlDeviceGetCurrPcieLinkGeneration
        )  # fmt: skip
        width = api.nvmlDeviceGetMaxPcieLinkWidth if most else api.nvmlDeviceGetCurrPcieLinkWidth
        return self._ask(generation, handle) or None, self._ask(width, handle) or None

    def numa_node(self, handle: Handle) -> int | None:
        """Returns the NUMA node that the device hangs on."""
        found = self._ask(self.api.nvmlDeviceGetNumaNodeId, handle)
        return None if found is None or found < 0 else int(found)

    def mig_enabled(self, handle: Handle) -> bool | None:
        """Returns whether the device is cut into slices."""
        modes = self._ask(self.api.nvmlDeviceGetMigMode, handle)
        return None if modes is None else bool(modes[0])

    def topology(self, one: Handle, other: Handle) -> str | None:
        """Returns the nearest that two devices have in common."""
        level = self._ask(self.api.nvmlDeviceGetTopologyCommonAncestor, one, other)
        return None if level is None else TOPOLOGIES.get(int(level))

    def nvlink_peer(self, one: Handle, other: Handle) -> bool | None:
        """Returns whether two devices reach each other's memory over NVLink."""
        index = self.api.NVML_P2P_CAPS_INDEX_NVLINK
        status = self._ask(self.api.nvmlDeviceGetP2PStatus, one, other, index)
        return None if status is None else status == self.api.NVML_P2P_STATUS_OK

    def state(self, handle: Handle) -> DeviceState:
        """Returns how the device runs at this moment."""
        api = self.api
        clock = self._ask(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_SM)
        most = self._ask(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM)
        memory = self._ask(api.nvmlDeviceGetClockInfo, handle, api.NVML_CLOCK_MEM)
        warm = self._ask(api.nvmlDeviceGetTemperature, handle, api.NVML_TEMPERATURE_GPU)
        power = self._ask(api.nvmlDeviceGetPowerUsage, handle)
        return DeviceState(
            clock_hz=_scaled(clock, MHZ) or None,
            max_clock_hz=_scaled(most, MHZ) or None,
            memory_clock_hz=_scaled(memory, MHZ) or None,
            throttle_reasons=self._reasons(handle),
            temperature_c=_scaled(warm, 1.0),
            power_w=_scaled(power, MILLIWATT),
        )

    def _reasons(self, handle: Handle) -> tuple[str, ...] | None:
        bits = self._ask(self.api.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if bits is None:  # drivers before 2023 know it by its older name
            bits = self._ask(self.api.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if bits is None:
            return None
        return tuple(word for bit, word in REASONS.items() if bits & bit)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode() if isinstance(value, bytes) else str(value)


def _scaled(value: Any, unit: float) -> float | None:
    return None if value is None else float(value) * unit
