"""A run of the profiler: the file is valid at every moment, and holds what was measured."""

import json
import os
from pathlib import Path

import pytest
from mock_runs import DEVICE, Clock, Interrupted, meter_of, mock_bench, mock_session

from apss_jax.schema.cluster import ClusterProfile, Link
from apss_jax.schema.document import read_document
from apss_jax.schema.errors import InputError
from apss_jax.schema.link_measurements import LinkMeasurement, LinkSample
from profiler.context import MeasuredLinks, MeasuringContext
from profiler.document import Findings, node_groups


def _read(path: Path) -> ClusterProfile:
    return read_document(ClusterProfile, path)


def test_a_run_leaves_a_profile(tmp_path: Path) -> None:
    """Devices, links, layers with their shapes, and the software that ran."""
    out = tmp_path / "p.json"
    found = mock_session(out, Clock()).run()
    assert _read(out) == found
    assert (found.name, found.stack, found.used_types) == (f"1x1x{DEVICE}", "jax", (DEVICE,))
    assert {row.shape for row in found.measurements} == set(found.shapes)
    assert {shape.part for shape in found.shapes.values()} == {
        "layer", "embedding", "head", "optimizer",
    }  # fmt: skip
    assert found.measurements[0].state.clock_hz == pytest.approx(1.9e9)


def test_an_update_tells_the_memory_rate(tmp_path: Path) -> None:
    """The measured share of the memory bandwidth replaces the assumed one."""
    found = mock_session(tmp_path / "p.json", Clock()).run()
    rates = found.device_types[DEVICE].rates
    assert 0.5 < rates.memory_fraction < 1.0
    assert "measured on the optimizer's update" in rates.source


def test_the_file_is_there_after_every_point(tmp_path: Path) -> None:
    """A valid file grows point by point: whoever kills the run finds what was measured."""
    out, sizes = tmp_path / "p.json", []
    session = mock_session(out, Clock())
    session.progress = lambda *_: sizes.append(len(_read(out).measurements))
    session.run()
    assert sizes == list(range(len(sizes))) and len(sizes) > 10


def test_an_interrupt_keeps_what_is_measured(tmp_path: Path) -> None:
    """Ctrl-C during the third point leaves two, and a later run goes on from there."""
    out, clock = tmp_path / "p.json", Clock()
    with pytest.raises(KeyboardInterrupt):
        mock_session(out, clock, meter=meter_of(clock, Interrupted)).run()
    kept = _read(out)
    assert len(kept.measurements) == 2
    whole = mock_session(out, Clock(), old=kept).run()
    assert whole.measurements[:2] == kept.measurements
    assert len({r.model_dump_json() for r in whole.measurements}) == len(whole.measurements)
    fresh = mock_session(tmp_path / "q.json", Clock()).run()
    assert len(whole.measurements) == len(fresh.measurements)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between writing and renaming leaves the file as it was, and nothing beside it."""
    out = tmp_path / "p.json"
    mock_session(out, Clock()).run()
    before = out.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        mock_session(out, Clock()).run()
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_of_other_devices_is_not_gone_on_with(tmp_path: Path) -> None:
    """Measurements of two machines never mix in one file without a merge."""
    out = tmp_path / "p.json"
    data = mock_session(out, Clock()).run().to_json()
    text = json.dumps(data).replace(DEVICE, "H100-SXM5-80GB")
    other = ClusterProfile.from_json(json.loads(text))
    with pytest.raises(InputError, match="is not what is at hand"):
        mock_session(out, Clock(), old=other).run()


def test_a_budget_is_kept(tmp_path: Path) -> None:
    """Eight minutes of points that compile for half a minute each."""
    clock = Clock()
    session = mock_session(
        tmp_path / "p.json", clock, minutes=8.0, meter=meter_of(clock, compile_s=30.0)
    )
    found = session.run()
    assert clock.now_s <= 1.2 * 480
    assert any("left out for time" in note for note in found.notes)


def _two_links(context: MeasuringContext) -> MeasuredLinks:
    """Returns what a survey of two nodes would: one network for both."""
    assert context.budget.limit_s == pytest.approx(0.3 * 600)
    sample = LinkSample(message_bytes=1024, median_s=1e-5, fastest_s=1e-5)
    return MeasuredLinks(
        links={"net": Link(bytes_per_s=1e9, latency_s=1e-5, provenance="measured")},
        intra_link_of_node=("net", "net"),
        network_of_node=("net", "net"),
        measurements=(
            LinkMeasurement(operation="send", link="net", devices=(0, 1), samples=(sample,)),
        ),
    )


def test_links_get_their_share_of_the_time(tmp_path: Path) -> None:
    """Links are measured first, in three tenths of the time; a resumed run takes them over."""
    clock, out = Clock(), tmp_path / "p.json"
    session = mock_session(out, clock, minutes=10.0)
    context = session.bench.context.__class__(
        **{**session.bench.context.__dict__, "devices": ("a", "b"), "node_of_device": (0, 1)}
    )
    fields = {**session.bench.__dict__, "context": context, "measure_links": _two_links}
    session.bench = type(session.bench)(**{**fields, "type_of_node": (DEVICE, DEVICE)})
    found = session.run()
    assert [link.link for link in found.link_measurements] == ["net"]
    assert (found.nodes[0].count, found.nodes[0].devices) == (2, 1)

    again = type(session)(
        type(session.request)(**{**session.request.__dict__, "old": found}),
        type(session.bench)(**{**fields, "type_of_node": (DEVICE, DEVICE), "measure_links": None}),
    )
    assert again.run().link_measurements == found.link_measurements


def _findings(devices: tuple[int, ...], bridges: dict[tuple[int, int], str]) -> Findings:
    count = len(devices)
    links = MeasuredLinks({}, ("in",) * count, ("out",) * count, bridge_of_nodes=bridges)
    bench = mock_bench(Clock())
    return Findings("it", bench.types, (DEVICE,) * count, devices, links)


def test_equal_neighbours_are_one_group() -> None:
    """Four nodes of 8, 8, 4 and 8 devices are three groups, in their order."""
    groups, of_node = node_groups(_findings((8, 8, 4, 8), {}))
    assert [(group.count, group.devices) for group in groups] == [(2, 8), (1, 4), (1, 8)]
    assert of_node == [0, 0, 1, 2]


def test_bridged_nodes_stay_apart() -> None:
    """A bridge joins groups, so its two nodes are groups of their own."""
    groups, of_node = node_groups(_findings((8, 8, 8), {(0, 1): "slow"}))
    assert [group.count for group in groups] == [1, 1, 1]
    assert of_node == [0, 1, 2]
