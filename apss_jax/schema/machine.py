"""What was measured: the devices as they describe themselves, their state, and the machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from apss_jax.schema.document import Part

DeviceIndex = Annotated[int, Field(ge=0)]


class DeviceState(Part):
    """How a device ran while it was measured; None where it does not say."""

    clock_hz: PositiveFloat | None = None  # of the multiprocessors
    max_clock_hz: PositiveFloat | None = None
    memory_clock_hz: PositiveFloat | None = None
    throttle_reasons: tuple[str, ...] | None = None  # None: unknown; empty: at full speed
    temperature_c: NonNegativeFloat | None = None
    power_w: NonNegativeFloat | None = None


class DeviceFacts(Part):
    """What one device says of itself; None where it does not say."""

    device: DeviceIndex  # number in the cluster, node by node
    node: DeviceIndex
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_bytes: PositiveInt | None = None
    memory_source: str | None = None  # who says so
    shares_host_memory: bool | None = None
    compute_capability: tuple[int, int] | None = None
    nvlinks: NonNegativeInt | None = None  # links that are up
    nvlink_bytes_per_s: PositiveFloat | None = None  # of one link, one way
    pcie_generation: PositiveInt | None = None
    pcie_width: PositiveInt | None = None
    max_pcie_generation: PositiveInt | None = None
    max_pcie_width: PositiveInt | None = None
    numa_node: NonNegativeInt | None = None
    mig_enabled: bool | None = None
    idle_state: DeviceState | None = None


class PairFacts(Part):
    """How two devices of one node are joined, as the driver says."""

    devices: tuple[DeviceIndex, DeviceIndex]
    topology: str | None = None  # nearest common ancestor: "internal", "single", ..., "system"
    nvlink_peer: bool | None = None  # one may write the other's memory over NVLink


class Machine(Part):
    """The computers that were measured, and how busy others kept them meanwhile."""

    cores: PositiveInt | None = None
    load_before: NonNegativeFloat | None = None  # runnable processes, mean of the last minute
    load_after: NonNegativeFloat | None = None
    host_memory_bytes: PositiveInt | None = None
    versions: dict[str, str] = Field(default_factory=dict)  # of software and drivers
    environment: dict[str, str] = Field(default_factory=dict)  # variables that change speed
