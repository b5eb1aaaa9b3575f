"""Where devices stand and what groups and pairs of them see of the links."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apss_jax.importers.clusters import load_cluster
from apss_jax.schema.cluster import Bridge, ClusterProfile, Link, NodeGroup
from apss_jax.schema.topology import Topology, network_between

DEVICE = load_cluster("1x8xA100").device_types["A100-SXM4-80GB"]
LINKS = {
    "intra": Link(bytes_per_s=100.0, latency_s=1.0, reached_fraction=0.5, transfer_fraction=0.8),
    "slow": Link(bytes_per_s=8.0, latency_s=2.0),
    "nic": Link(bytes_per_s=10.0, latency_s=4.0, reached_fraction=0.5),
    "fast": Link(bytes_per_s=20.0, latency_s=3.0),
    "shared": Link(bytes_per_s=12.0, latency_s=5.0, shared_by_node=True),
}


def _group(
    count: int, devices: int, network: str, intra: str = "intra", span: int = 1
) -> NodeGroup:
    return NodeGroup(
        count=count,
        devices=devices,
        device_type="gpu",
        intra_link=intra,
        network=network,
        nodes_per_domain=span,
    )


def _cluster(*groups: NodeGroup, bridges: tuple[Bridge, ...] = ()) -> ClusterProfile:
    return ClusterProfile(
        name="small", device_types={"gpu": DEVICE}, links=LINKS, nodes=groups, bridges=bridges
    )


def _topology(*groups: NodeGroup, bridges: tuple[Bridge, ...] = ()) -> Topology:
    return Topology.of(_cluster(*groups, bridges=bridges))


def _rates(
    topology: Topology, groups: list[list[int]], concurrent: int | None = None
) -> list[float]:
    found = topology.group_links(np.array(groups), concurrent_groups=concurrent)
    return found.bytes_per_s.tolist()


def test_devices_are_numbered_node_by_node() -> None:
    """Uneven nodes keep the file's order; a domain never spans node groups."""
    topology = _topology(_group(1, 3, "nic"), _group(3, 2, "nic", span=2))
    assert topology.node.tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert topology.group.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert topology.domain.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert topology.num_devices == 9


def test_device_types_follow_the_nodes() -> None:
    """AMP's mixed cluster has 12 V100 and then 4 T4."""
    topology = Topology.of(load_cluster("amp-het-cluster"))
    assert topology.device_type.tolist() == [0] * 12 + [1] * 4


def test_a_pair_sees_the_intra_link_or_the_slower_network() -> None:
    """Inside a node the node's own link; between groups the slower of both networks."""
    topology = _topology(_group(2, 2, "fast"), _group(1, 2, "slow"))
    assert topology.link_between(0, 1) == LINKS["intra"]
    assert topology.link_between(0, 2) == LINKS["fast"]
    assert topology.link_between(0, 4) == topology.link_between(4, 0) == LINKS["slow"]


def test_amp_nodes_of_two_kinds_meet_at_ten_gigabits() -> None:
    """Between a P3 (10 Gbit/s) and a G4dn (50 Gbit/s) node the slower network counts."""
    topology = Topology.of(load_cluster("amp-het-cluster"))
    assert topology.link_between(11, 12).bytes_per_s == 10e9 / 8
    assert topology.link_between(12, 13).bytes_per_s == 50e9 / 8
    assert topology.link_between(0, 1).bytes_per_s == 170e9 / 8


def test_a_bridge_replaces_the_networks_between_its_groups() -> None:
    """The bridge counts between its two groups in both directions, and nowhere else."""
    bridge = Bridge(groups=(0, 1), link="slow")
    cluster = _cluster(
        _group(1, 1, "fast"), _group(1, 1, "fast"), _group(1, 1, "fast"), bridges=(bridge,)
    )
    assert network_between(cluster, 1, 0) == network_between(cluster, 0, 1) == LINKS["slow"]
    assert network_between(cluster, 0, 2) == LINKS["fast"]
    assert _rates(Topology.of(cluster), [[0, 1], [0, 2], [1, 2]]) == [8.0, 20.0, 20.0]


def test_a_gb200_rack_is_one_domain() -> None:
    """All 72 devices see NVLink; the next rack is reached over the network."""
    topology = Topology.of(load_cluster("36x4xGB200"))
    assert topology.link_between(0, 71).bytes_per_s == 900e9
    assert topology.link_between(71, 72).bytes_per_s == 50e9
    assert topology.group_link(np.arange(72)).num_domains.tolist() == [1]
    assert topology.group_link(np.arange(144)).num_domains.tolist() == [2]


def test_inside_a_domain_the_intra_link_counts() -> None:
    """100 bytes/s of which collectives reach half; one call costs the link's latency."""
    found = _topology(_group(2, 4, "nic")).group_links(np.array([[0, 1, 2], [5, 6, 7]]))
    assert found.bytes_per_s.tolist() == [100 * 0.5] * 2
    assert found.latency_s.tolist() == [1.0, 1.0]


def test_one_device_alone_waits_for_nobody() -> None:
    """A group of one has no latency, also beside groups that have."""
    found = _topology(_group(2, 2, "nic")).group_links(np.array([[0], [3]]))
    assert found.latency_s.tolist() == [0.0, 0.0]
    assert np.isfinite(found.bytes_per_s).all()


@pytest.mark.parametrize(("members", "expected"), [(1, 5.0), (2, 10.0), (4, 20.0)])
def test_members_bring_their_nics(members: int, expected: float) -> None:
    """Across nodes: members x 10 bytes/s x 0.5, below the intra link's 50."""
    groups = [[*range(members), *range(16, 16 + members)]]
    assert _rates(_topology(_group(2, 16, "nic")), groups) == [expected]


def test_many_nics_are_capped_by_the_intra_link() -> None:
    """16 members would bring 80 bytes/s; the intra link carries 50."""
    assert _rates(_topology(_group(2, 16, "nic")), [list(range(32))]) == [50.0]


def test_the_smaller_node_limits_an_uneven_group() -> None:
    """3 members here and 1 there: one NIC of 10 x 0.5 carries the ring."""
    assert _rates(_topology(_group(1, 3, "nic"), _group(1, 1, "nic")), [[0, 1, 2, 3]]) == [5.0]


def test_a_shared_network_is_divided_by_the_groups_that_use_it() -> None:
    """12 bytes/s of the node serve 1 group, 2 groups, or as many as are said to run at once."""
    topology = _topology(_group(2, 4, "shared"))
    assert _rates(topology, [[0, 4]]) == [12.0]
    assert _rates(topology, [[0, 4], [1, 5]]) == [6.0, 6.0]
    assert _rates(topology, [[0, 4]], concurrent=4) == [3.0]
    assert _rates(topology, [[0, 1, 4, 5]]) == [12.0]


def test_groups_inside_a_node_leave_the_shared_network_alone() -> None:
    """Only groups that leave the node count as its users."""
    topology = _topology(_group(2, 4, "shared"))
    assert _rates(topology, [[0, 4], [1, 2]]) == [12.0, 50.0]


def test_a_shared_and_an_own_network_meet_at_the_smaller_offer() -> None:
    """4 NICs of 20 bytes/s offer 80, the shared network of the other node 12."""
    topology = _topology(_group(1, 4, "fast"), _group(1, 4, "shared"))
    assert _rates(topology, [list(range(8))]) == [12.0]
    assert _rates(topology, [[0, 4]]) == [12.0]
    assert _rates(topology, [[i, i + 4] for i in range(4)]) == [3.0] * 4


def test_latency_grows_with_the_number_of_domains() -> None:
    """Intra 1 s where several stand together, plus 4 s for each domain but one."""
    topology = _topology(_group(8, 2, "nic"))
    found = topology.group_links(np.array([[0, 2, 4, 6], [0, 1, 2, 3]]))
    assert found.latency_s.tolist() == [4 * 3, 1 + 4 * 1]
    assert found.num_domains.tolist() == [4, 2]


def test_a_ring_may_take_longer_from_node_to_node_than_a_transfer() -> None:
    """Three steps of 7 s between four nodes; a transfer keeps the 4 s."""
    links = {**LINKS, "nic": LINKS["nic"].model_copy(update={"step_latency_s": 7.0})}
    cluster = _cluster(_group(4, 1, "nic")).model_copy(update={"links": links})
    topology = Topology.of(cluster)
    assert topology.group_link(np.arange(4)).latency_s.tolist() == [3 * 7.0]
    assert topology.transfer_link(np.array([[0]]), np.array([[1]])).latency_s.tolist() == [4.0]


def test_a_transfer_takes_the_slowest_pair() -> None:
    """Pairs inside a node run at 80 of 100 bytes/s, the one across nodes at its NIC's 10."""
    topology = _topology(_group(2, 4, "nic"))
    senders, receivers = np.array([[0, 1], [0, 1]]), np.array([[2, 3], [2, 4]])
    found = topology.transfer_link(senders, receivers)
    assert found.bytes_per_s.tolist() == [80.0, 10.0]
    assert found.latency_s.tolist() == [1.0, 4.0]


def test_transfers_share_a_shared_network() -> None:
    """Four pairs between two nodes get a quarter each of 12 bytes/s; rows do not disturb others."""
    topology = _topology(_group(2, 4, "shared"))
    everything = topology.transfer_link(np.arange(4)[None], np.arange(4, 8)[None])
    assert everything.bytes_per_s.tolist() == [3.0]
    rows = topology.transfer_link(np.array([[0], [1]]), np.array([[4], [5]]))
    assert rows.bytes_per_s.tolist() == [12.0, 12.0]


def test_a_transfer_over_a_bridge() -> None:
    """Pairs between bridged groups see the bridge, divided where it is shared."""
    bridge = Bridge(groups=(1, 0), link="shared")
    topology = _topology(_group(1, 2, "fast"), _group(1, 2, "fast"), bridges=(bridge,))
    found = topology.transfer_link(np.array([[0, 1]]), np.array([[2, 3]]))
    assert found.bytes_per_s.tolist() == [6.0]
    assert found.latency_s.tolist() == [5.0]


@st.composite
def _problems(draw: st.DrawFn) -> tuple[Topology, np.ndarray]:
    """Draws a cluster of up to four node groups and disjoint equal groups of its devices."""
    networks = st.sampled_from(["slow", "nic", "fast", "shared"])
    sizes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4))
    groups = [
        _group(count, devices, draw(networks), draw(st.sampled_from(["intra", "fast"])))
        for count, devices in sizes
    ]
    pairs = [(a, b) for b in range(len(groups)) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2)) if pairs else []
    bridges = tuple(Bridge(groups=pair, link=draw(networks)) for pair in chosen)
    topology = _topology(*groups, bridges=bridges)
    size = draw(st.integers(1, topology.num_devices))
    order = draw(st.permutations(range(topology.num_devices)))
    count = topology.num_devices // size
    return topology, np.array(order[: size * count]).reshape(count, size)


def _by_hand(topology: Topology, groups: np.ndarray, row: int) -> float:
    """Returns the rate of one group, worked step by step without arrays."""
    cluster = topology.cluster
    nodes = [sorted({int(topology.node[d]) for d in group}) for group in groups]
    home = {int(n): cluster.nodes[g] for n, g in zip(topology.node, topology.group, strict=True)}
    index = {int(n): int(g) for n, g in zip(topology.node, topology.group, strict=True)}
    members = {n: sum(int(topology.node[d]) == n for d in groups[row]) for n in nodes[row]}
    users = {n: sum(n in visited and len(visited) > 1 for visited in nodes) for n in nodes[row]}

    def reached(name: str) -> float:
        return cluster.links[name].bytes_per_s * cluster.links[name].reached_fraction

    def offer(node: int, name: str) -> float:
        share = 1 / users[node] if cluster.links[name].shared_by_node else members[node]
        return reached(name) * share

    def step(a: int, b: int) -> float:
        between = {index[a], index[b]}
        for bridge in cluster.bridges:
            if set(bridge.groups) == between:
                return min(offer(a, bridge.link), offer(b, bridge.link))
        return min(offer(a, home[a].network), offer(b, home[b].network))

    ring = nodes[row]
    if len(ring) == 1:
        return reached(home[ring[0]].intra_link)
    steps = [step(a, b) for a, b in pairwise([*ring, ring[0]])]
    return min(steps + [reached(home[n].intra_link) for n in ring if members[n] > 1])


@given(_problems())
def test_group_links_equal_a_step_by_step_account(problem: tuple[Topology, np.ndarray]) -> None:
    """The arrays give what a loop over nodes and ring steps gives, for any mix of groups."""
    topology, groups = problem
    found = topology.group_links(groups).bytes_per_s
    expected = [_by_hand(topology, groups, row) for row in range(len(groups))]
    assert found.tolist() == pytest.approx(expected)


@given(_problems())
def test_many_groups_equal_one_by_one(problem: tuple[Topology, np.ndarray]) -> None:
    """With the number of concurrent groups fixed, a batch is a loop of single groups."""
    topology, groups = problem
    batch = topology.group_links(groups, concurrent_groups=3)
    single = [topology.group_link(group, concurrent_groups=3) for group in groups]
    assert batch.bytes_per_s.tolist() == [float(one.bytes_per_s[0]) for one in single]
    assert batch.latency_s.tolist() == [float(one.latency_s[0]) for one in single]


@given(_problems(), st.sampled_from(sorted(LINKS)))
def test_a_faster_link_never_slows_a_group(problem: tuple[Topology, np.ndarray], name: str) -> None:
    """Doubling any link's rate lowers no group's and no transfer's rate."""
    topology, groups = problem
    link = LINKS[name].model_copy(update={"bytes_per_s": 2 * LINKS[name].bytes_per_s})
    cluster = topology.cluster.model_copy(update={"links": {**LINKS, name: link}})
    faster = Topology.of(cluster)
    before, after = (t.group_links(groups).bytes_per_s for t in (topology, faster))
    assert (after >= before).all()
    ends = groups, np.roll(groups, 1, axis=0)
    before, after = (t.transfer_link(*ends).bytes_per_s for t in (topology, faster))
    assert (after >= before).all()
