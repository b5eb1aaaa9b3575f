"""The devices at hand: found, named, joined to what the driver says, and given meters."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from apss_jax.schema.cluster import Device, DeviceType, Precision
from apss_jax.schema.machine import DeviceFacts, PairFacts
from profiler.budget import Budget
from profiler.context import MeasureLinksFn, MeasuringContext
from profiler.device_types import NamedType, named_type, probe_device, type_name
from profiler.exchange import gather_texts
from profiler.facts import Joined, device_facts, device_state, joined, machine_facts, pair_facts
from profiler.hosts import Launch, join
from profiler.meter import DeviceMeter
from profiler.nvml import Nvml
from profiler.peaks import peak_in_own_process
from profiler.processes import place_devices
from profiler.session import Bench
from profiler.timing import Stopwatch

FORCED_DEVICES: Final = "--xla_force_host_platform_device_count"
MEMORY_FRACTION: Final = "0.95"  # libraries beside JAX's allocator need the rest
CPU_STOPWATCH: Final = Stopwatch(repeats=7, warm_ups=1, statistic="least", runs_in_order=False)


def prepare_environment(cpu_devices: int) -> None:
    """Sets what JAX reads when it is first imported; what the user has set stays.

    Without reservation ahead of need a device's memory is free for a second process, and what an
    allocator reports is what was used. Numbers of devices follow the PCI bus, as NVML's do.
    """
    defaults = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_FRACTION,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    flags = os.environ.get("XLA_FLAGS", "")
    if FORCED_DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FORCED_DEVICES}={cpu_devices}".strip()


def default_precision(platform: str) -> Precision:
    """Returns what is measured where nobody says: what such devices train in."""
    return "fp32" if platform == "cpu" else "bf16"


def bench_at_hand(
    *,
    budget: Budget,
    precision: Precision | None = None,  # None: what such devices train in
    launch: Launch | None = None,
    measure_links: MeasureLinksFn | None = None,
    peaks: bool = True,
) -> Bench:
    """Returns the bench of this machine, or of all that a launcher started.

    Raises `InputError` where processes do not meet, or a driver does not match its library.
    """
    if launch is not None:
        join(launch)
    nvml = Nvml.opened()
    places = place_devices(socket.gethostname())
    platform = places.devices[0].platform
    precision = precision or default_precision(platform)
    context = MeasuringContext(
        devices=places.devices,
        node_of_device=places.node_of_device,
        node_names=places.node_names,
        stopwatch=CPU_STOPWATCH if platform == "cpu" else Stopwatch(),
        budget=budget,
        process_index=_process()[0],
        num_processes=_process()[1],
    )
    local = _local(joined(places.devices, places.node_of_device, nvml), context.process_index)
    facts, pairs = _all_facts(local, nvml, context)
    types = _all_types(local, facts, precision, context)
    owners = _owners(facts, context)
    meters = [
        _meter(one, types[name], context, nvml, peaks=peaks)
        for one in local
        for name in types
        if owners.get(name) == one.number
    ]
    return Bench(
        context=context,
        types=types,
        type_of_node=_type_of_node(facts, context),
        meters=tuple(meters),
        gather=gather_texts,
        measure_links=measure_links,
        device_facts=tuple(facts.values()),
        pair_facts=pairs,
        machine=machine_facts(nvml),
        notes=tuple(dict.fromkeys(one.note for one in types.values())),
    )


def _process() -> tuple[int, int]:
    import jax

    return jax.process_index(), jax.process_count()


def _local(devices: Sequence[Joined], process_index: int) -> list[Joined]:
    return [one for one in devices if one.device.process_index == process_index]


def _all_facts(
    local: Sequence[Joined], nvml: Nvml | None, context: MeasuringContext
) -> tuple[dict[int, DeviceFacts], tuple[PairFacts, ...]]:
    """Returns what all processes know of their devices, by number, and of pairs."""
    on_host = [context.node_of_device.count(one.node) for one in local]
    own = [device_facts(one, nvml, count) for one, count in zip(local, on_host, strict=True)]
    said = {
        "devices": [facts.model_dump(mode="json") for facts in own],
        "pairs": [pair.model_dump(mode="json") for pair in pair_facts(local, nvml)],
    }
    told = [json.loads(text) for text in gather_texts(json.dumps(said))]
    facts = [DeviceFacts.model_validate_json(json.dumps(f)) for t in told for f in t["devices"]]
    pairs = [PairFacts.model_validate_json(json.dumps(p)) for t in told for p in t["pairs"]]
    return {one.device: one for one in sorted(facts, key=lambda f: f.device)}, tuple(pairs)


def _all_types(
    local: Sequence[Joined],
    facts: dict[int, DeviceFacts],
    precision: Precision,
    context: MeasuringContext,
) -> dict[str, NamedType]:
    """Returns the types of all processes; the first that names a type describes it."""
    own: dict[str, NamedType] = {}
    names: set[str | None] = set()
    for one in local:
        mine = facts[one.number]
        if mine.name in names:
            continue  # the same product again
        names.add(mine.name)
        probe = probe_device(one.device, context.stopwatch)
        found = named_type(mine, one.device.platform, precision, probe)
        own.setdefault(found.name, found)
    told = [
        json.loads(text) for text in gather_texts(json.dumps([_packed(t) for t in own.values()]))
    ]
    every: dict[str, NamedType] = {}
    for item in (item for each in told for item in each):
        every.setdefault(item["name"], _unpacked(item))
    return every


def _packed(one: NamedType) -> dict[str, Any]:
    library = None if one.library is None else one.library.to_json()
    kept = one.device_type.model_dump(mode="json", exclude_none=True)
    return {"name": one.name, "device_type": kept, "library": library, "note": one.note}


def _unpacked(item: dict[str, Any]) -> NamedType:
    library = None if item["library"] is None else Device.from_json(item["library"])
    kept = DeviceType.model_validate_json(json.dumps(item["device_type"]))
    return NamedType(item["name"], kept, library, item["note"])


def _owners(facts: dict[int, DeviceFacts], context: MeasuringContext) -> dict[str, int]:
    """Returns the first device of each type: the one that is measured."""
    found: dict[str, int] = {}
    for number, one in facts.items():
        found.setdefault(type_name(one.name, context.devices[number].platform), number)
    return found


def _type_of_node(facts: dict[int, DeviceFacts], context: MeasuringContext) -> tuple[str, ...]:
    found: dict[int, str] = {}
    for number, one in facts.items():
        node = context.node_of_device[number]
        found.setdefault(node, type_name(one.name, context.devices[number].platform))
    return tuple(found[node] for node in range(context.num_nodes))


def _meter(
    one: Joined,
    named: NamedType,
    context: MeasuringContext,
    nvml: Nvml | None,
    *,
    peaks: bool,
) -> DeviceMeter:
    is_gpu = one.device.platform == "gpu"
    index = getattr(one.device, "local_hardware_id", 0) or 0
    return DeviceMeter(
        device=one.device,
        device_type=named.name,
        stopwatch=context.stopwatch,
        peak_flops_per_s=dict(named.library.device_type.peak_flops_per_s) if named.library else {},
        budget=context.budget,
        state=lambda: device_state(one, nvml),
        peak=(lambda p, k: peak_in_own_process(p, k, context.budget, device_index=index))
        if is_gpu and peaks and context.num_processes == 1
        else None,
        attention_kernel="cudnn" if is_gpu else None,
    )
