"""A survey of known links finds what they were made of."""

import pytest
from fake_links import LATENCY_S, Question, RateFn, survey_of

from apss_jax.schema.cluster import Link
from profiler.context import LinkStart, MeasuredLinks
from profiler.links import surveyed

FAST, NET, SLOW = 1e10, 1e9, 1.2e8
GUESS = Link(bytes_per_s=1.0, latency_s=1.0)
ASSUMED = MeasuredLinks({"guess": GUESS}, ("guess",) * 4, ("guess",) * 4)


def _two_levels(node_size: int, network: float = NET) -> RateFn:
    def rate(a: int, b: int) -> float:
        return FAST if a // node_size == b // node_size else network

    return rate


def test_one_node_has_a_fast_link_and_an_assumed_network() -> None:
    """What one node cannot measure is assumed, and says so."""
    found = surveyed(survey_of([4], _two_levels(4)))
    intra = found.links[found.intra_link_of_node[0]]
    assert intra.bytes_per_s == pytest.approx(FAST, rel=1e-3)
    assert intra.latency_s == pytest.approx(LATENCY_S, rel=1e-2)
    assert intra.provenance == "measured"
    assert found.links[found.network_of_node[0]].provenance == "analytic"


def test_two_nodes_have_both_links() -> None:
    """The network's rate and latency are found beside those of the fast link."""
    found = surveyed(survey_of([2, 2], _two_levels(2)))
    network = found.links[found.network_of_node[0]]
    assert set(found.links) == {"intra", "network"}
    assert network.bytes_per_s == pytest.approx(NET, rel=1e-3)
    assert network.latency_s == pytest.approx(LATENCY_S, rel=1e-2)
    assert not network.shared_by_node
    assert found.notes == ()


def test_a_network_that_devices_divide_is_the_node_s() -> None:
    """Four devices that together reach what one reaches alone share one network card."""
    found = surveyed(survey_of([4, 4], _two_levels(4), node_rate=NET))
    network = found.links["network"]
    assert network.shared_by_node
    assert network.bytes_per_s == pytest.approx(NET, rel=1e-3)


def test_cards_of_their_own_count_per_device() -> None:
    """Devices that lose nothing when all send have a network each."""
    found = surveyed(survey_of([4, 4], _two_levels(4), node_rate=4 * NET))
    assert not found.links["network"].shared_by_node
    assert found.links["network"].bytes_per_s == pytest.approx(NET, rel=1e-3)


def test_the_slow_node_of_three_has_a_network_of_its_own() -> None:
    """Node 1 is named, with its rate; its network is another link than the others'."""

    def rate(a: int, b: int) -> float:
        return SLOW if 1 in (a, b) else NET

    found = surveyed(survey_of([1, 1, 1], rate))
    assert found.network_of_node == ("network", "network-2", "network")
    assert found.links["network-2"].bytes_per_s == pytest.approx(SLOW, rel=1e-3)
    assert found.links["network"].bytes_per_s == pytest.approx(NET, rel=1e-3)
    assert [n for n in found.notes if "n1" in n and "960 Mbit/s" in n and "8 Gbit/s" in n]
    assert found.bridge_of_nodes == {}


def test_a_slow_pair_gets_a_bridge() -> None:
    """Nodes 0 and 2 reach others fast: what joins the two is the slow link, not their networks."""

    def rate(a: int, b: int) -> float:
        return SLOW if {a, b} == {0, 2} else NET

    found = surveyed(survey_of([1, 1, 1, 1], rate))
    assert set(found.bridge_of_nodes) == {(0, 2)}
    bridge = found.links[found.bridge_of_nodes[0, 2]]
    assert bridge.bytes_per_s == pytest.approx(SLOW, rel=1e-3)
    assert set(found.network_of_node) == {"network"}
    assert any("n0 and n2" in note for note in found.notes)


def test_a_slow_pair_inside_a_node_is_told() -> None:
    """Devices 1 and 3 of a node are four times slower to each other than the others."""

    def rate(a: int, b: int) -> float:
        return FAST / 4 if {a, b} == {1, 3} else FAST

    notes = surveyed(survey_of([4], rate)).notes
    (said,) = notes
    assert said.startswith("devices 1 and 3 (n0) are 4.0 times slower than the fastest pair")
    assert said.endswith("19.9 Gbit/s")  # a quarter of 80, less what the latency takes


@pytest.mark.parametrize(("size", "pair"), [(4, (5, 6)), (4, (5, 7)), (16, (20, 22))])
def test_a_slow_pair_of_any_node_is_named(size: int, pair: tuple[int, int]) -> None:
    """Also in the second of two equal nodes, whether its ring passes the pair or not.

    Of sixteen devices each is tried with the next two alone.
    """

    def rate(a: int, b: int) -> float:
        if a // size != b // size:
            return NET
        return FAST / 4 if {a, b} == {*pair} else FAST

    found = surveyed(survey_of([size, size], rate))
    slow = f"devices {pair[0]} and {pair[1]} (n1) are 4.0 times slower"
    assert [note for note in found.notes if note.startswith(slow)]
    assert not [note for note in found.notes if note.startswith("devices") and "(n0)" in note]


def test_devices_of_three_nodes_reduce_at_once() -> None:
    """Each place of all three nodes forms a group; that they divide a network is found."""
    found = surveyed(survey_of([2, 2, 2], _two_levels(2), node_rate=NET))
    alone, at_once = (
        next(
            m for m in found.measurements
            if (m.operation, m.devices, m.concurrent_groups) == ("all_reduce", (0, 2, 4), groups)
        )
        for groups in (1, 2)
    )  # fmt: skip
    assert at_once.fit.bus_bytes_per_s == pytest.approx(alone.fit.bus_bytes_per_s / 2, rel=1e-3)
    assert found.links["network"].shared_by_node


@pytest.mark.parametrize("switch_rate", [2 * NET, 100 * NET])
def test_a_switch_that_pairs_of_nodes_share_is_named(switch_rate: float) -> None:
    """Three pairs of nodes send at once, two devices each: a thin switch makes them slower."""
    found = surveyed(survey_of([2] * 6, _two_levels(2), switch_rate=switch_rate))
    assert max(m.concurrent_groups for m in found.measurements if m.operation == "send") == 6
    said = [note for note in found.notes if "a switch is shared" in note]
    assert bool(said) == (switch_rate == 2 * NET)
    assert all("3 pairs of nodes" in note and "2.67 Gbit/s" in note for note in said)


def test_what_was_left_out_for_time_is_said() -> None:
    """A run that ends early names what is missing; a whole one has nothing to say."""
    short = surveyed(survey_of([2, 2], _two_levels(2), budget_calls=5))
    (said,) = [note for note in short.notes if note.startswith("links left out for time")]
    assert "all_reduce over 1 x 2 devices" in said
    assert "--resume" in said
    assert surveyed(survey_of([2, 2], _two_levels(2))).notes == ()


def _odd(a: int, b: int) -> float:
    """Returns rates of four nodes of two: the pair 0 and 2 is slow, and so is node 3."""
    nodes = {a // 2, b // 2}
    if len(nodes) == 1:
        return FAST
    return SLOW if nodes == {0, 2} or 3 in nodes else NET


class Stopped(Exception):
    """Ends a survey where a user or a kill would."""


@pytest.mark.parametrize("kept", [1, 3, 10, 25, 40])
def test_an_interrupted_survey_is_gone_on_with(kept: int) -> None:
    """What was measured before the end is not measured again, and the whole is as without one."""
    sizes = [2, 2, 2, 2]
    whole = survey_of(sizes, _odd)
    expected = surveyed(whole)
    (so_far, before) = _stopped_after(kept, sizes)
    assert len(so_far.measurements) + len(so_far.pair_rates) == kept
    later = survey_of(sizes, _odd, start=LinkStart(ASSUMED, so_far))
    assert surveyed(later) == expected
    assert [*before, *later.sampler.asked] == whole.sampler.asked


def _stopped_after(count: int, sizes: list[int]) -> tuple[MeasuredLinks, list[Question]]:
    """Returns what was kept of a survey that ended after so many measurements, and was asked."""
    kept: list[MeasuredLinks] = []

    def keep(links: MeasuredLinks) -> None:
        kept.append(links)
        if len(kept) == count:
            raise Stopped

    survey = survey_of(sizes, _odd, start=LinkStart(ASSUMED, keep=keep))
    with pytest.raises(Stopped):
        surveyed(survey)
    return kept[-1], survey.sampler.asked


def test_links_not_measured_yet_are_assumed() -> None:
    """In the middle of a survey every node has links, and the file says that some are missing."""
    so_far, _ = _stopped_after(1, [2, 2, 2, 2])
    assert so_far.intra_link_of_node == so_far.network_of_node == ("guess",) * 4
    assert set(so_far.links) == {"guess"}
    assert so_far.notes == (
        "links are not all measured yet: a run with --resume measures the rest",
    )


def test_short_ladders_are_gone_on_with() -> None:
    """Sizes that had no time are measured later, those that are there are not."""
    sizes = [2, 2]
    short = surveyed(survey_of(sizes, _two_levels(2), has_time=False))
    assert all(len(m.samples) == 2 for m in short.measurements)
    later = surveyed(survey_of(sizes, _two_levels(2), start=LinkStart(ASSUMED, short)))
    assert later == surveyed(survey_of(sizes, _two_levels(2)))


def test_an_odd_node_has_a_fast_link_of_its_own() -> None:
    """The link inside node 2 reaches half of its like: the planner sees that."""

    def rate(a: int, b: int) -> float:
        return NET if a // 2 != b // 2 else (FAST / 2 if a // 2 == 2 else FAST)

    found = surveyed(survey_of([2, 2, 2, 2], rate))
    assert found.intra_link_of_node[2] != found.intra_link_of_node[0] == "intra"
    odd = found.links[found.intra_link_of_node[2]]
    assert odd.bytes_per_s == pytest.approx(FAST / 2, rel=0.1)


def test_a_slow_network_card_is_told() -> None:
    """Device 6, the third of node 1, reaches a tenth of its neighbours' rate."""

    def rate(a: int, b: int) -> float:
        return FAST if a // 4 == b // 4 else (NET / 10 if a == 6 else NET)

    notes = surveyed(survey_of([4, 4], rate, node_rate=10 * NET)).notes
    assert any("device 6 (n1)" in note for note in notes)


def test_without_time_the_links_still_have_figures() -> None:
    """When the time is up at once, only what planning needs is measured."""
    found = surveyed(survey_of([2, 2], _two_levels(2), has_time=False, node_rate=NET))
    assert {m.operation for m in found.measurements} == {"send", "all_reduce"}
    assert found.pair_rates == ()
    assert found.links["network"].shared_by_node  # both devices at once were measured, too
    assert found.links["network"].bytes_per_s == pytest.approx(NET, rel=0.1)


def test_both_directions_and_all_collectives_are_measured() -> None:
    """Every operation appears for both link classes, with several groups at once among them."""
    found = surveyed(survey_of([4, 4], _two_levels(4)))
    for link in ("intra", "network"):
        operations = {m.operation for m in found.measurements if m.link == link}
        assert operations >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
        assert operations >= {"send", "exchange"}
        assert max(m.concurrent_groups for m in found.measurements if m.link == link) > 1
