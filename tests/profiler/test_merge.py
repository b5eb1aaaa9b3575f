"""Profiles of different nodes become one cluster, and what contradicts is named."""

from pathlib import Path
from typing import Any

import pytest

from apss_jax.importers.clusters import load_cluster
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape
from apss_jax.schema.document import write_document
from apss_jax.schema.errors import InputError
from apss_jax.schema.link_measurements import LinkMeasurement, LinkSample, PairRate
from apss_jax.schema.machine import DeviceFacts
from apss_jax.schema.topology import Topology
from profiler.commands import merge_command
from profiler.joints import Joint, parse_joint
from profiler.merge import Source, merge_profiles

SHAPE = LayerShape(part="head", hidden_size=64, vocab_size=128)


def _row(device: str, forward_s: float, **changes: Any) -> LayerMeasurement:
    point = {"tensor_parallel": 1, "micro_batch": 1, "seq_len": 128, "precision": "bf16"}
    return LayerMeasurement(
        shape="head", device_type=device, forward_s=forward_s, **{**point, **changes}
    )


def _profile(spec: str, **changes: Any) -> ClusterProfile:
    return load_cluster(spec).model_copy(update={"stack": "jax", **changes})


H100 = _profile("1x8xH100-SXM5-80GB")
L40S = _profile("2x4xL40S-48GB")


def _merged(*profiles: ClusterProfile, link: str | None = None, **options: Any) -> ClusterProfile:
    sources = [Source(f"{i + 1}.json", profile) for i, profile in enumerate(profiles)]
    return merge_profiles(sources, [Joint(None, link)] if link else [], **options)


def test_nodes_stand_in_the_order_of_the_files() -> None:
    """Eight H100 and eight L40S become sixteen devices on three nodes."""
    merged = _merged(H100, L40S)
    assert merged.num_devices == 16
    assert [group.device_type for group in merged.nodes] == ["H100-SXM5-80GB", "L40S-48GB"]
    assert set(merged.device_types) == {"H100-SXM5-80GB", "L40S-48GB"}
    assert any("slower of their networks" in note for note in merged.notes)


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [("100Gbit/s,5us", 12.5e9, 5e-6), ("3 GB/s", 3e9, 20e-6), ("400 Mbit/s, 1ms", 5e7, 1e-3)],
)
def test_a_rate_joins_the_files(text: str, bytes_per_s: float, latency_s: float) -> None:
    """The link between the first and the last device is the one that was told."""
    merged = _merged(H100, L40S, link=text)
    link = Topology.of(merged).link_between(0, 15)
    assert (link.bytes_per_s, link.latency_s) == (
        pytest.approx(bytes_per_s),
        pytest.approx(latency_s),
    )
    assert not any("slower of their networks" in note for note in merged.notes)


def test_each_pair_of_files_may_have_its_link() -> None:
    """Files 1 and 3 are joined by another link than the others."""
    other = _profile("1x4xA100-SXM4-80GB")
    sources = [Source(f"{i}", p) for i, p in enumerate((H100, L40S, other))]
    joints = [parse_joint("1,3=1Gbit/s"), parse_joint("10Gbit/s")]
    topology = Topology.of(merge_profiles(sources, joints))
    assert topology.link_between(0, 16).bytes_per_s == pytest.approx(1.25e8)
    assert topology.link_between(0, 8).bytes_per_s == pytest.approx(1.25e9)


def test_a_library_link_joins_the_files() -> None:
    """A name of the library is looked up."""
    name = next(iter(L40S.links))
    assert _merged(H100, L40S, link=name).bridges[0].link == name


@pytest.mark.parametrize("text", ["rope", "12 parsecs", "1,9=10Gbit/s", "1,1=10Gbit/s"])
def test_a_link_that_nobody_knows_is_refused(text: str) -> None:
    """The message shows the forms that a link may have, or counts the files."""
    with pytest.raises(InputError, match="--link"):
        sources = [Source("a", H100), Source("b", L40S)]
        merge_profiles(sources, [parse_joint(text)])


def test_numbers_of_devices_move_with_their_nodes() -> None:
    """What the second file says of its device 1 is said of device 9 of the whole."""
    sample = LinkSample(message_bytes=1024, median_s=1e-3, fastest_s=1e-3)
    name = L40S.nodes[0].intra_link
    second = L40S.model_copy(
        update={
            "link_measurements": (
                LinkMeasurement(operation="send", link=name, devices=(0, 1), samples=(sample,)),
            ),
            "pair_rates": (PairRate(sender=1, receiver=4, bytes_per_s=1e9, message_bytes=64),),
            "device_facts": (DeviceFacts(device=1, node=0, uuid="GPU-b"),),
        }
    )
    merged = _merged(H100, second)
    assert merged.link_measurements[0].devices == (8, 9)
    assert (merged.pair_rates[0].sender, merged.pair_rates[0].receiver) == (9, 12)
    assert (merged.device_facts[0].device, merged.device_facts[0].node) == (9, 1)
    assert ClusterProfile.from_json(merged.to_json()) == merged


def test_one_name_for_two_links_gives_two_names() -> None:
    """Links are local to their files: both stay, and nodes keep theirs."""
    (name,) = {group.intra_link for group in H100.nodes}
    slower = H100.links[name].model_copy(update={"bytes_per_s": 1e9})
    other = H100.model_copy(update={"links": {**H100.links, name: slower}})
    merged = _merged(H100, other)
    assert [merged.links[g.intra_link].bytes_per_s for g in merged.nodes] == [
        H100.links[name].bytes_per_s,
        1e9,
    ]


def test_a_merge_of_a_merge_keeps_every_link() -> None:
    """A file that already holds a second link under a name made here keeps it beside a third."""
    (name,) = {group.intra_link for group in H100.nodes}

    def of_rate(bytes_per_s: float) -> ClusterProfile:
        link = H100.links[name].model_copy(update={"bytes_per_s": bytes_per_s})
        return H100.model_copy(update={"links": {**H100.links, name: link}})

    pair = _merged(of_rate(1e9), of_rate(2e9))
    for merged, rates in (
        (_merged(of_rate(3e9), pair), [3e9, 1e9, 2e9]),
        (_merged(pair, of_rate(3e9)), [1e9, 2e9, 3e9]),
        (_merged(pair, of_rate(3e9), of_rate(2e9)), [1e9, 2e9, 3e9, 2e9]),
    ):
        assert [merged.links[g.intra_link].bytes_per_s for g in merged.nodes] == rates


def _with_memory_fraction(fraction: float) -> ClusterProfile:
    device = H100.device_types["H100-SXM5-80GB"]
    changes = {"memory_fraction": fraction, "source": f"measured as {fraction}"}
    rates = device.rates.model_copy(update=changes)
    changed = device.model_copy(update={"rates": rates})
    return H100.model_copy(update={"device_types": {"H100-SXM5-80GB": changed}})


def test_rates_that_each_run_measures_do_not_contradict() -> None:
    """Two runs on one device type reach slightly different memory rates: one's is kept and said."""
    ours, theirs = _with_memory_fraction(0.8125), _with_memory_fraction(0.75)
    merged = _merged(ours, theirs)
    assert merged.device_types["H100-SXM5-80GB"].rates.memory_fraction == 0.8125
    (note,) = [text for text in merged.notes if "memory_fraction" in text]
    assert "2.json" in note and "0.75" in note and "0.812" in note
    last = _merged(ours, theirs, keep="last")
    assert last.device_types["H100-SXM5-80GB"].rates.memory_fraction == 0.75


def test_rates_of_the_datasheet_still_contradict() -> None:
    """What the library says a product reaches is no figure of a run."""
    device = H100.device_types["H100-SXM5-80GB"]
    rates = device.rates.model_copy(update={"gemm_fraction": 0.123})
    changed = {"H100-SXM5-80GB": device.model_copy(update={"rates": rates})}
    with pytest.raises(InputError, match=r"H100-SXM5-80GB\.rates\.gemm_fraction is 0\.123"):
        _merged(H100, H100.model_copy(update={"device_types": changed}))


def _measured(**changes: Any) -> ClusterProfile:
    row = _row("H100-SXM5-80GB", 1e-3, **changes)
    return H100.model_copy(update={"shapes": {"head": SHAPE}, "measurements": (row,)})


@pytest.mark.parametrize("field", ["backward_s", "saved_bytes", "peak_bytes"])
def test_other_figures_of_a_point_contradict_too(field: str) -> None:
    """Times that agree do not excuse another figure that is twice as large; unknown is no value."""
    with pytest.raises(InputError) as caught:
        _merged(_measured(**{field: 100}), _measured(**{field: 200}))
    assert [wrong.key for wrong in caught.value.mistakes] == [f"measurements.0.{field}"]
    assert len(_merged(_measured(**{field: 100}), _measured(**{field: 104})).measurements) == 1
    assert len(_merged(_measured(**{field: 100}), _measured()).measurements) == 1


def test_contradictions_are_all_named() -> None:
    """Two memories of one device type, two stacks and two times of one point: three messages."""
    device = H100.device_types["H100-SXM5-80GB"]
    ours = H100.model_copy(
        update={"shapes": {"head": SHAPE}, "measurements": (_row("H100-SXM5-80GB", 1e-3),)}
    )
    theirs = ours.model_copy(
        update={
            "stack": "megatron",
            "device_types": {"H100-SXM5-80GB": device.model_copy(update={"memory_bytes": 10**10})},
            "measurements": (_row("H100-SXM5-80GB", 2e-3),),
        }
    )
    with pytest.raises(InputError) as caught:
        _merged(ours, theirs)
    keys = {wrong.key for wrong in caught.value.mistakes}
    assert keys == {
        "device_types.H100-SXM5-80GB.memory_bytes",
        "stack",
        "measurements.0.forward_s",
    }
    assert all("1.json" in wrong.rule for wrong in caught.value.mistakes)
    last = _merged(ours, theirs, keep="last")
    assert (last.stack, last.measurements[0].forward_s) == ("megatron", 2e-3)
    assert _merged(ours, theirs, keep="first").measurements[0].forward_s == 1e-3


def test_close_times_of_one_point_do_not_contradict() -> None:
    """Two measurements within a twentieth are one."""
    one, other = (
        H100.model_copy(
            update={"shapes": {"head": SHAPE}, "measurements": (_row("H100-SXM5-80GB", s),)}
        )
        for s in (1e-3, 1.03e-3)
    )
    assert len(_merged(one, other).measurements) == 1


def test_one_device_cannot_stand_twice() -> None:
    """A device whose UUID is in both files was measured twice."""
    known = (DeviceFacts(device=0, node=0, uuid="GPU-a"),)
    one, other = (p.model_copy(update={"device_facts": known}) for p in (H100, L40S))
    with pytest.raises(InputError, match=r"2\.json.*GPU-a.*1\.json"):
        _merged(one, other)


def test_the_command_writes_what_a_search_reads(tmp_path: Path) -> None:
    """Two files become one cluster file; an older file stays unless it may be replaced."""
    for name, profile in (("a", H100), ("b", L40S)):
        write_document(profile, tmp_path / f"{name}.json")
    files, out = [str(tmp_path / "a.json"), str(tmp_path / "b.json")], str(tmp_path / "c.json")
    merge_command(files, link=["100Gbit/s"], out=out)
    assert load_cluster(out).num_devices == 16
    with pytest.raises(InputError, match="already there"):
        merge_command(files, out=out)
    merge_command(files, out=out, force=True)
    with pytest.raises(InputError, match="one file alone"):
        merge_command(files[:1], out=out)
