"""The device type of a device at hand: the library's where it is known, else what probes say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from apss_jax.importers.devices import driver_device
from apss_jax.schema.cluster import Device, DeviceRates, DeviceType, LayerMeasurement, Precision
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.machine import DeviceFacts
from profiler.layers import DTYPES
from profiler.timing import Stopwatch

PROBE_SIZES: Final = (512, 1024, 2048)  # of square products; the largest decides the rate
PROBE_COPY_BYTES: Final = 256 * 2**20
# What Adam moves per parameter: master weight, two moments and gradient in; weight, moments and the
# 16-bit copy out; as the planner counts it.
UPDATE_BYTES: Final = 34.0
MOST_MEMORY_FRACTION: Final = 1.0


def library_device(name: str | None) -> Device | None:
    """Returns the library's device that a driver's name means; a MIG slice is none of them."""
    return driver_device(name)


def type_name(name: str | None, platform: str) -> str:
    """Returns the name that a device's type has in a profile."""
    library = library_device(name)
    if library is not None:
        return library.name
    return "CPU" if platform == "cpu" else name or platform


@dataclass(frozen=True)
class NamedType:
    """A device type under the name that measurements give it, and how it came about."""

    name: str
    device_type: DeviceType
    library: Device | None
    note: str


ProbeFn = Callable[[Precision], "Probed"]
"""Measures a device's own rates in a precision."""


@dataclass(frozen=True)
class Probed:
    """What a device reached."""

    flops_per_s: float
    memory_bytes_per_s: float


def named_type(
    facts: DeviceFacts, platform: str, precision: Precision, probe: ProbeFn
) -> NamedType:
    """Returns the type of a device; one that the library does not know is probed."""
    library = library_device(facts.name)
    if library is not None:
        known = library.device_type
        told = facts.memory_bytes or known.memory_bytes
        kept = known.model_copy(update={"memory_bytes": min(told, known.memory_bytes)})
        return NamedType(library.name, kept, library, f"{library.name}: datasheet of the library")
    name = type_name(facts.name, platform)
    if facts.memory_bytes is None:
        raise unknown_memory(name)
    probed = probe(precision)
    rates = DeviceRates(
        gemm_fraction=1.0,
        gemm_half_size=0.0,
        attention_fraction=1.0,
        memory_fraction=1.0,
        source="probed: the peak is what a large product reached, so all of it is reached",
    )
    made = DeviceType(
        memory_bytes=facts.memory_bytes,
        peak_flops_per_s={precision: probed.flops_per_s},
        memory_bytes_per_s=probed.memory_bytes_per_s,
        rates=rates,
        provenance="measured",
        source=f"a product of {PROBE_SIZES[-1]} square and a copy of {PROBE_COPY_BYTES >> 20} MiB",
    )
    return NamedType(name, made, None, f"{name} is not in the library: its rates are probed")


def unknown_memory(name: str) -> InputError:
    """Returns the error for a device of which nobody knows the memory."""
    rule = "neither the driver nor JAX's allocator nor the host says how much memory it has"
    return mistake("device", name, rule, "Describe the device in a cluster file")


def probe_device(device: Any, stopwatch: Stopwatch) -> ProbeFn:
    """Returns the probe of a device."""
    import jax
    import jax.numpy as jnp

    def run(precision: Precision) -> Probed:
        with jax.default_device(device):
            size = PROBE_SIZES[-1]
            square = jnp.full((size, size), 1.0 / size, DTYPES[precision])
            product = jax.jit(lambda a, b: a @ b)
            time_s = stopwatch.time(lambda: product(square, square)).time_s
            values = jnp.ones(PROBE_COPY_BYTES // 4, jnp.float32)
            scale = jax.jit(lambda x, by: x * by)
            copy_s = stopwatch.time(lambda: scale(values, 1.5)).time_s
        return Probed(2.0 * size**3 / time_s, 2.0 * PROBE_COPY_BYTES / copy_s)

    return run


def with_update_rate(
    known: DeviceType, updates: list[LayerMeasurement], counts: list[int]
) -> DeviceType:
    """Returns the type with the share of its memory rate that measured optimizer updates reached.

    An update is the purest memory-bound kernel of a step. Without one the type stays as it is.
    """
    reached = [
        UPDATE_BYTES * count / row.forward_s / known.memory_bytes_per_s
        for row, count in zip(updates, counts, strict=True)
    ]
    if not reached:
        return known
    fraction = min(max(reached), MOST_MEMORY_FRACTION)
    source = f"{known.rates.source}; memory_fraction measured on the optimizer's update"
    rates = known.rates.model_copy(update={"memory_fraction": fraction, "source": source})
    return known.model_copy(update={"rates": rates})


def with_layer_rate(known: DeviceType, rows: list[LayerMeasurement]) -> DeviceType:
    """Returns a probed type whose products reach what measured layers reached at best.

    A large square product says what the device can do; layers have smaller ones, and much beside.
    """
    reached = [
        row.forward_flops / row.forward_s / known.peak_flops_per_s[row.precision]
        for row in rows
        if row.forward_flops and row.precision in known.peak_flops_per_s
    ]
    if not reached:
        return known
    fraction = min(max(reached), 1.0)
    source = f"{known.rates.source}; gemm_fraction is what layers reached of it"
    rates = known.rates.model_copy(update={"gemm_fraction": fraction, "source": source})
    return known.model_copy(update={"rates": rates})
