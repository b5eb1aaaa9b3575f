"""A run of the profiler: the file is valid at every moment, and holds what was measured."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_links import FakeSampler, context_of
from mock_runs import DEVICE, Clock, Interrupted, meter_of, mock_bench, mock_session

from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.document import read_document
from apss_jax.schema.errors import InputError
from profiler.context import LinkStart, MeasuredLinks, MeasuringContext
from profiler.document import Findings, node_groups
from profiler.links import surveyed
from profiler.session import Session
from profiler.survey import Survey


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


SIZES = (2, 2, 2)
SLOW_NODE = 2


def _rate(a: int, b: int) -> float:
    nodes = {a // 2, b // 2}
    return 1e10 if len(nodes) == 1 else 1e8 if SLOW_NODE in nodes else 1e9


def _surveyed(context: MeasuringContext, start: LinkStart) -> MeasuredLinks:
    """Returns what a survey finds of three nodes, the last with a slow network."""
    survey = Survey.of(context, start)
    survey.sampler = FakeSampler(context, _rate)
    return surveyed(survey)


def _interrupted(context: MeasuringContext, start: LinkStart) -> MeasuredLinks:
    """Ends the run when the fourth measurement has been kept."""
    kept: list[MeasuredLinks] = []

    def keep(links: MeasuredLinks) -> None:
        start.keep(links)
        kept.append(links)
        if len(kept) == 4:
            raise KeyboardInterrupt

    return _surveyed(context, replace(start, keep=keep))


def _on_three_nodes(session: Session, **changes: Any) -> Session:
    """Returns the run on three nodes of two devices each."""
    places = context_of(SIZES)
    old = session.bench.context
    context = replace(
        old, devices=places.devices, node_of_device=places.node_of_device, **changes.pop("at", {})
    )
    session.bench = replace(session.bench, context=context, type_of_node=(DEVICE,) * 3, **changes)
    return session


def _measured(profile: ClusterProfile) -> ClusterProfile:
    """Returns a profile without the machine's load, which is another at any moment."""
    return profile.model_copy(update={"machine": None})


def test_links_get_their_share_of_the_time(tmp_path: Path) -> None:
    """Links are measured first, in three tenths of the time, and shown as that part of the bar."""
    told: list[tuple[str, float, float]] = []

    def measured(context: MeasuringContext, start: LinkStart) -> MeasuredLinks:
        assert context.budget.limit_s == pytest.approx(0.3 * 600)
        return _surveyed(context, start)

    session = mock_session(tmp_path / "p.json", Clock(), minutes=10.0)
    session.progress = lambda *now: told.append(now)
    found = _on_three_nodes(session, measure_links=measured).run()
    assert {m.link for m in found.link_measurements} == {"intra", "network", "network-2"}
    assert [(g.count, g.devices, g.network) for g in found.nodes] == [
        (2, 2, "network"), (1, 2, "network-2"),
    ]  # fmt: skip
    assert told[0] == ("Links: all_reduce over 1 x 2 devices", 0.0, 600.0)


def test_interrupted_links_are_in_the_file_and_gone_on_with(tmp_path: Path) -> None:
    """Ctrl-C during links keeps those that are measured; a later run measures only the others."""
    out = tmp_path / "p.json"
    with pytest.raises(KeyboardInterrupt):
        _on_three_nodes(mock_session(out, Clock()), measure_links=_interrupted).run()
    kept = _read(out)
    assert len(kept.link_measurements) + len(kept.pair_rates) == 4
    assert any("not all measured yet" in note for note in kept.notes)
    later = _on_three_nodes(mock_session(out, Clock(), old=kept), measure_links=_surveyed).run()
    whole = _on_three_nodes(mock_session(tmp_path / "q.json", Clock()), measure_links=_surveyed)
    assert _measured(later) == _measured(whole.run())


def test_a_run_goes_on_although_links_split_its_nodes(tmp_path: Path) -> None:
    """Nodes are compared one by one: a slow network has put one into a group of its own."""
    out = tmp_path / "p.json"
    found = _on_three_nodes(mock_session(out, Clock()), measure_links=_surveyed).run()
    assert len(found.nodes) == 2
    later = _on_three_nodes(mock_session(out, Clock(), old=found), measure_links=_surveyed)
    assert _measured(later.run()) == _measured(found)


def test_links_of_a_file_are_kept_where_none_can_be_measured(tmp_path: Path) -> None:
    """A run without a way to measure links takes those of the file over."""
    out = tmp_path / "p.json"
    found = _on_three_nodes(mock_session(out, Clock()), measure_links=_surveyed).run()
    later = _on_three_nodes(mock_session(out, Clock(), old=found), measure_links=None).run()
    assert later.link_measurements == found.link_measurements
    assert later.links == found.links


@pytest.mark.parametrize("process", [0, 1])
def test_all_processes_go_on_with_the_file_of_the_first(tmp_path: Path, process: int) -> None:
    """Only process 0 writes a file, so other hosts have none: they are told what is in it."""
    old = _on_three_nodes(mock_session(tmp_path / "p.json", Clock()), measure_links=None).run()
    own = old if process == 0 else None
    said = json.dumps(old.to_json())

    def gather(text: str) -> list[str]:
        first = said if text in ("", said) else text
        return [first, text]

    at = {"process_index": process, "num_processes": 2}
    session = mock_session(tmp_path / "q.json", Clock(), old=own)
    found = _on_three_nodes(session, measure_links=None, gather=gather, at=at).run()
    assert found.measurements == old.measurements


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
