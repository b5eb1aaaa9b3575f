"""What a person sees of a profile: tables, pictures, warnings."""

import io
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile, Link
from apss_jax.schema.link_measurements import LinkFit, LinkMeasurement, LinkSample, PairRate
from apss_jax.schema.machine import DeviceFacts, DeviceState, Machine
from profiler.findings import warnings_of
from profiler.mocks import mocked_profile
from profiler.plots import draw_bandwidth, draw_layers, draw_pairs, draw_profile
from profiler.points import Axes
from profiler.show import show_profile

AXES = Axes((1, 4), (1024,), (1,), ("bf16",), ("none",))
PNG = b"\x89PNG\r\n"


def profile(**changes: Any) -> ClusterProfile:
    """Returns a mocked node of eight H100 with the given fields."""
    made = mocked_profile(load_cluster("1x8xH100-SXM5-80GB"), load_model("gpt2"), axes=AXES)
    return made.model_copy(update=changes)


def warned(**changes: Any) -> list[str]:
    """Returns the warnings beside the one that everything is mocked."""
    mocked, *others = warnings_of(profile(**changes))
    assert "mocked" in mocked
    return others


def rows(**changes: Any) -> tuple[Any, ...]:
    """Returns the measurements with the same fields changed in each."""
    return tuple(row.model_copy(update=changes) for row in profile().measurements)


def test_an_ordinary_profile_has_no_warning() -> None:
    """Nothing is made up: an idle machine whose devices ran freely is fine."""
    facts = tuple(DeviceFacts(device=i, node=0, pcie_width=16, max_pcie_width=16) for i in range(8))
    idle = DeviceState(clock_hz=1.9e9, throttle_reasons=("idle",))
    machine = Machine(cores=16, load_before=0.1)
    assert warned(device_facts=facts, machine=machine, measurements=rows(state=idle)) == []


def test_a_throttled_device_is_named_with_reason_and_clock() -> None:
    """A person sees how far the clock fell and why."""
    state = DeviceState(clock_hz=1.2e9, max_clock_hz=1.98e9, throttle_reasons=("power cap",))
    (found,) = warned(measurements=rows(state=state))
    assert "H100-SXM5-80GB was throttled in" in found
    assert "(power cap), down to 1200 of 1980 MHz" in found


def _pairs(slow: float) -> tuple[PairRate, ...]:
    return tuple(
        PairRate(sender=a, receiver=b, bytes_per_s=slow if (a, b) == (2, 5) else 4e11,
                 message_bytes=2**26)
        for a in range(8) for b in range(8) if a != b
    )  # fmt: skip


def test_a_slow_pair_is_named() -> None:
    """The pair that is four times slower than the others, and only this one."""
    assert warned(pair_rates=_pairs(4e11)) == []
    (found,) = warned(pair_rates=_pairs(1e11))
    assert found.startswith("device 2 to 5 is 4.0 times slower than other pairs in a node")


def test_noisy_samples_are_counted() -> None:
    """Repeats that differ by half say little."""
    (found,) = warned(measurements=rows(spread_fraction=0.5))
    assert "are noisy" in found and "at worst 50%" in found


def test_noisy_links_are_named() -> None:
    """Samples that lie far off their line say little of the link, whatever the line says."""
    measured = profile().link_measurements
    (first, *others) = [m.model_copy(update={"provenance": "measured"}) for m in measured]
    fit = LinkFit(latency_s=1e-5, bus_bytes_per_s=1e9, error_fraction=0.5)
    noisy = first.model_copy(update={"fit": fit})
    (found,) = warned(link_measurements=(noisy, *others))
    assert found.startswith(f"{first.operation} over {len(first.devices)} devices ({first.link})")
    assert "noisy" in found and "50%" in found


def test_load_is_told() -> None:
    """Four busy processes on eight cores are load; one is not."""
    assert warned(machine=Machine(cores=8, load_before=1.0)) == []
    (found,) = warned(machine=Machine(cores=8, load_before=4.0))
    assert found.startswith("this profile was made under load: 4.0 processes")


def test_a_narrow_slot_is_told() -> None:
    """One card in an x4 slot slows every group that it is in."""
    facts = (DeviceFacts(device=3, node=0, pcie_width=4, max_pcie_width=16),)
    (found,) = warned(device_facts=facts)
    assert found == "device 3 sits in a PCIe slot of 4 lanes and could use 16"


def test_shared_memory_is_told() -> None:
    """Unified memory is the host's too: what is planned for is less."""
    facts = (DeviceFacts(device=0, node=0, memory_bytes=2**37, shares_host_memory=True),)
    (found,) = warned(device_facts=facts)
    assert "128 GiB each, less whatever else the host holds" in found


def test_a_link_far_below_its_kind_is_told() -> None:
    """14 GB/s on a network of 50 (NVIDIA/nccl#1454) is no measurement to plan with unseen."""
    links = dict(profile().links)
    usual = links["ndr400"]
    slow = {"bytes_per_s": usual.bytes_per_s / 10, "provenance": "measured"}
    links["ndr400"] = usual.model_copy(update=slow)
    (found,) = warned(links=links)
    assert found.startswith("link ndr400 reaches") and "10 times less" in found


def test_chosen_adapters_are_told() -> None:
    """One adapter of four (NVIDIA/nccl#700) halves nothing less than everything."""
    (found,) = warned(machine=Machine(environment={"NCCL_IB_HCA": "mlx5_0"}))
    assert found.startswith("NCCL_IB_HCA=mlx5_0")


def test_tables_hold_what_was_found() -> None:
    """Links with sizes, layers with times, warnings, and how a search uses it."""
    page = io.StringIO()
    show_profile(profile(), Console(file=page, width=120))
    text = page.getvalue()
    for part in ("Links", "all_reduce over 8 devices", "Layers on H100-SXM5-80GB", "gpt2 layer",
                 "Warnings", "are mocked", "stack only the devices' speed"):  # fmt: skip
        assert part in text


def test_tables_hold_the_figures_of_the_profile() -> None:
    """A link's rate and latency, a layer's times and rate, a message's bus bandwidth."""
    page = io.StringIO()
    row = (
        profile()
        .measurements[0]
        .model_copy(update={"forward_s": 2e-3, "backward_s": 4.5e-3, "forward_flops": 1e12})
    )
    sample = LinkSample(message_bytes=2**20, median_s=1e-4, fastest_s=9e-5)
    reduced = LinkMeasurement(operation="all_reduce", devices=(0, 1, 2, 3), samples=(sample,))
    link = Link(bytes_per_s=123e9, latency_s=7e-6, provenance="measured")
    links = {**profile().links, "it": link}
    shown = profile(measurements=(row,), link_measurements=(reduced,), links=links)
    show_profile(shown, Console(file=page, width=120))
    text = " ".join(page.getvalue().split())
    assert "it measured 123 7 us 100%" in text
    assert "2 ms 4.5 ms 500" in text  # TFLOP/s
    assert "1 MiB 100 us 90 us 15.7" in text  # 2 x 3/4 of the message in 100 us


def _axes() -> Any:
    return Figure().subplots()


def test_bandwidth_is_drawn_over_message_size() -> None:
    """A line for each operation: sizes to the right, bus bandwidth in GB/s upwards."""
    samples = tuple(
        LinkSample(message_bytes=size, median_s=time_s, fastest_s=time_s)
        for size, time_s in ((2**20, 1e-4), (2**24, 1e-3))
    )
    reduced = LinkMeasurement(
        operation="all_reduce", link="nvlink4", devices=(0, 1), samples=samples
    )
    axes = _axes()
    draw_bandwidth(profile(link_measurements=(reduced,)), axes)
    (line,) = axes.lines
    assert line.get_label() == "nvlink4 all_reduce n=2"
    assert line.get_xdata().tolist() == [2**20, 2**24]
    assert line.get_ydata() == pytest.approx([2**20 / 1e-4 / 1e9, 2**24 / 1e-3 / 1e9])


def test_layers_are_drawn_over_the_micro_batch() -> None:
    """Both passes in ms, a line for each shape, length and tensor degree."""
    axes = _axes()
    draw_layers(profile(), axes)
    (line,) = [one for one in axes.lines if " gpt2 layer " in one.get_label()]
    both_s = {r.micro_batch: r.forward_s + r.backward_s for r in rows() if r.shape == "gpt2 layer"}
    assert line.get_xdata().tolist() == [1, 4]
    assert line.get_ydata() == pytest.approx([1e3 * both_s[1], 1e3 * both_s[4]])


def test_pairs_are_drawn_as_a_map() -> None:
    """Senders down, receivers across, in GB/s; a device and itself stay empty."""
    axes = _axes()
    draw_pairs(profile(pair_rates=_pairs(1e11)), axes)
    drawn = axes.images[0].get_array()
    assert drawn.shape == (8, 8)
    assert (drawn[2, 5], drawn[5, 2]) == (100.0, 400.0)
    assert drawn.mask.diagonal().all()


@pytest.mark.parametrize("has_pairs", [True, False])
def test_pictures_are_drawn_where_there_is_data(tmp_path: Path, has_pairs: bool) -> None:
    """Bandwidth, layers, and a map of pairs where pairs were measured."""
    shown = profile(pair_rates=_pairs(1e11) if has_pairs else ())
    written = draw_profile(shown, tmp_path / "new")
    assert [file.name for file in written] == ["bandwidth.png", "layers.png"] + (
        ["pairs.png"] if has_pairs else []
    )
    assert all(file.read_bytes().startswith(PNG) for file in written)


def test_an_empty_profile_is_shown(tmp_path: Path) -> None:
    """A cluster of the library has no measurements: no picture, no table of layers."""
    plain = load_cluster("1x8xH100-SXM5-80GB")
    page = io.StringIO()
    show_profile(plain, Console(file=page, width=120))
    assert "Layers on" not in page.getvalue()
    assert draw_profile(plain, tmp_path) == []
