"""Hardware and drivers that people reported, one test each; the ids are those of the reports.

Others stand where their subject is tested: unified memory, slices, driver mismatch and identity in
`test_device_facts`, unfinished work in `test_timing_traps`, slow networks in `test_show`.
"""

import os
import weakref
from typing import Any

import numpy as np
import pynvml
import pytest
from fake_nvml import H200, FakeLibrary, install

from apss_jax.importers.clusters import load_link
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile, Link
from apss_jax.schema.link_measurements import LinkMeasurement, LinkSample
from apss_jax.schema.weights import count
from apss_jax.units import MIB
from profiler.bench import prepare_environment
from profiler.findings import warnings_of
from profiler.fit import bus_rates
from profiler.nvml import Nvml
from profiler.show import collective_table
from profiler.timing import Stopwatch


class Forbidding(FakeLibrary):
    """A driver in a container that shows a sliced card and answers nothing about it."""

    def _f_nvmlDeviceGetMemoryInfo(self, *_: Any) -> int:
        return int(pynvml.NVML_ERROR_NO_PERMISSION)

    _f_nvmlDeviceGetNvLinkState = _f_nvmlDeviceGetClockInfo = _f_nvmlDeviceGetMemoryInfo


def test_forbidden_questions_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """G03, NVIDIA/nvidia-container-toolkit#842: "Insufficient Permissions" is no crash."""
    install(monkeypatch, Forbidding(H200))
    nvml = Nvml.opened()
    handle = nvml.handle_at(0)
    state = nvml.state(handle)
    assert (nvml.memory_bytes(handle), nvml.nvlinks(handle), state.clock_hz) == (None, None, None)
    assert nvml.name(handle) == "NVIDIA H200"


def test_memory_is_never_read_from_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """G10, jax-ml/jax#7046: JAX reserves most of a card; all of it is still the card's memory."""
    install(monkeypatch, FakeLibrary(H200))  # the fake reports every byte as used
    nvml = Nvml.opened()
    assert nvml.memory_bytes(nvml.handle_at(0)) == 143771 * 2**20


def test_jax_is_told_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """G10 and G19: no reservation ahead of need, and a share of the memory below all of it."""
    environment: dict[str, str] = {"XLA_FLAGS": "--xla_dump_to=x"}
    monkeypatch.setattr(os, "environ", environment)
    prepare_environment(2)
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert 0 < float(environment["XLA_PYTHON_CLIENT_MEM_FRACTION"]) <= 0.95
    assert environment["XLA_FLAGS"].split() == [
        "--xla_dump_to=x", "--xla_force_host_platform_device_count=2",
    ]  # fmt: skip


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who forces four devices and a fraction gets them."""
    given = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5",
    }
    environment = dict(given)
    monkeypatch.setattr(os, "environ", environment)
    prepare_environment(2)
    assert {name: environment[name] for name in given} == given


def _busbw(count: int, bytes_per_s: float) -> dict[int, float]:
    """Returns the rates of a measured all-reduce, by message size."""
    size = 2**28
    time_s = 2 * (count - 1) / count * size / bytes_per_s
    return bus_rates(
        "all_reduce", count, [LinkSample(message_bytes=size, median_s=time_s, fastest_s=time_s)]
    )


@pytest.mark.parametrize(("count", "bytes_per_s"), [(8, 28e9), (4, 35e9)])
def test_rates_are_told_by_group_size(count: int, bytes_per_s: float) -> None:
    """G13, NVIDIA/nccl#1639: eight cards on PCIe reach 28 GB/s and four 35; both are kept."""
    assert list(_busbw(count, bytes_per_s).values()) == pytest.approx([bytes_per_s])


def test_groups_of_two_sizes_are_shown_apart() -> None:
    """G13 and G18: a person sees what each group reached, a pair and all four."""
    sample = LinkSample(message_bytes=2**20, median_s=1e-3, fastest_s=1e-3)
    four, pair = (
        LinkMeasurement(operation="all_reduce", link="pcie", devices=devices, samples=(sample,))
        for devices in ((0, 1, 2, 3), (0, 1))
    )
    titles = [collective_table(measured).title for measured in (four, pair)]
    assert titles == ["all_reduce over 4 devices (pcie)", "all_reduce over 2 devices (pcie)"]


def _on_network(bytes_per_s: float) -> ClusterProfile:
    from apss_jax.importers.clusters import load_cluster

    cluster = load_cluster("300x8xH100-SXM5-80GB")
    links = dict(cluster.links)
    links["ndr400"] = Link(bytes_per_s=bytes_per_s, latency_s=1e-5, provenance="measured")
    return cluster.model_copy(update={"links": links})


def test_a_tenth_of_the_network_is_a_warning() -> None:
    """G15, NVIDIA/nccl#1454: a shortfall of ten is named, an ordinary figure is not."""
    assert warnings_of(_on_network(46e9)) == []
    (found,) = warnings_of(_on_network(4.6e9))
    assert "times less than ndr400" in found


def test_outputs_of_earlier_calls_are_freed() -> None:
    """G21, PKU-DAIR/Hetu-Galvatron#36: however often a call is repeated, one result is held."""

    class Result:
        def block_until_ready(self) -> None:
            """Is there at once."""

    made: list[weakref.ref[Result]] = []
    most_alive = 0

    def call() -> Result:
        nonlocal most_alive
        result = Result()
        made.append(weakref.ref(result))
        most_alive = max(most_alive, sum(ref() is not None for ref in made))
        return result

    Stopwatch(repeats=5, warm_ups=1, clock=iter(np.arange(0, 1e4, 1e-3)).__next__).time(call)
    assert len(made) > 10
    assert most_alive <= 2  # the one before, until the next is there


def test_a_pair_of_quad_cards_reaches_what_was_measured() -> None:
    """G17, NVIDIA/nccl-tests#331: 72 of the 100 GB/s of a pair of A100s, not the datasheet's."""
    quad = load_link("nvlink3-quad")
    assert quad.provenance == "measured"
    assert quad.reached_fraction == pytest.approx(0.72, abs=0.05)


def test_sizes_of_layers_carry_their_unit() -> None:
    """G22, Hsword/Hetu#70: BERT-large's "48.05" are MiB of one layer's FP32 weights."""
    layer = load_model("bert-large-uncased").layer_sequence[0]
    assert 4 * count(layer.weights(1024)) / MIB == pytest.approx(48.05, abs=0.01)
