"""Where every device stands, and what link groups and pairs of devices see.

Devices are numbered node by node in the order of the file. A *domain* is what shares the fast
link: a node, or `nodes_per_domain` nodes of one group.

A collective over a group runs as a ring in device order. Inside one domain its rate is the intra
link's. Across domains, each step of the ring from one domain to the next offers (members in the
domain that has fewer) x (network rate of one device), where the network is the slower of both
ends' or the bridge between their node groups; a network that its node shares is instead divided by
the groups that use the node at once. The ring runs at its slowest step, and never faster than the
intra link of a domain with several members: min(intra, members x NIC x reached fraction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.schema.cluster import ClusterProfile, Link

PerDevice = Int[np.ndarray, " devices"]
Groups = Int[np.ndarray, "batch devices"]
PerGroup = Float[np.ndarray, " batch"]


class GroupLink(NamedTuple):
    """What a collective over each group sees, per one-way collective.

    `bytes_per_s` is the ring's bus rate with the reached fraction in it: a one-way collective on a
    buffer of S bytes in a group of n takes (n - 1) / n * S / bytes_per_s + latency_s. A group of
    one device has latency 0.
    """

    bytes_per_s: PerGroup
    latency_s: PerGroup
    num_domains: Int[np.ndarray, " batch"]


class TransferLink(NamedTuple):
    """What the slowest pair of each row sees when all pairs of the row send at once."""

    bytes_per_s: PerGroup
    latency_s: PerGroup


class _LinkTable(NamedTuple):
    """Figures of the link between node groups; of the intra links with one index."""

    collective_bytes_per_s: Float[np.ndarray, "..."]
    transfer_bytes_per_s: Float[np.ndarray, "..."]
    latency_s: Float[np.ndarray, "..."]
    shared: Bool[np.ndarray, "..."]


class _Runs(NamedTuple):
    """Each group's members, gathered by domain: one row per group, one column per domain visited.

    Columns beyond a group's own number of domains have no members.
    """

    num_domains: Int[np.ndarray, " batch"]
    members: Int[np.ndarray, "batch nodes"]
    nodes_used: Int[np.ndarray, "batch nodes"]
    first_device: Int[np.ndarray, "batch nodes"]


@dataclass(frozen=True)
class Topology:
    """The place of every device of a cluster, as arrays."""

    cluster: ClusterProfile
    node: PerDevice
    group: PerDevice  # index in `cluster.nodes`
    domain: PerDevice
    device_type: PerDevice  # index in `cluster.used_types`

    @classmethod
    def of(cls, cluster: ClusterProfile) -> Topology:
        """Returns the topology of a cluster."""
        groups = cluster.nodes
        devices = [group.devices for group in groups for _ in range(group.count)]
        group_of_node = np.repeat(np.arange(len(groups)), [group.count for group in groups])
        node = np.repeat(np.arange(len(devices)), devices)
        types = np.array([cluster.used_types.index(group.device_type) for group in groups])
        group = group_of_node[node]
        return cls(cluster, node, group, _domain_of_node(cluster)[node], types[group])

    @property
    def num_devices(self) -> int:
        """Returns the number of devices."""
        return self.node.shape[0]

    def link_between(self, a: int, b: int) -> Link:
        """Returns the link between two devices: the intra link, or the network between nodes."""
        if self.domain[a] == self.domain[b]:
            return self.cluster.links[self.cluster.nodes[self.group[a]].intra_link]
        return network_between(self.cluster, int(self.group[a]), int(self.group[b]))

    def group_link(self, devices: PerDevice, *, concurrent_groups: int = 1) -> GroupLink:
        """Returns what a collective over ONE group of devices sees, with a batch axis of 1."""
        return self.group_links(np.asarray(devices)[None], concurrent_groups=concurrent_groups)

    def group_links(self, groups: Groups, *, concurrent_groups: int | None = None) -> GroupLink:
        """Returns what collectives over groups of equal size see.

        `concurrent_groups` says how many groups use a node's network at once; None counts it from
        the given groups, which are then all the groups that communicate at the same time.
        """
        runs = self._runs(np.sort(np.asarray(groups), axis=1))
        intra_rate, intra_latency = self._inside(runs)
        network_rate, network_latency = self._across(runs, self._users(runs, concurrent_groups))
        hops = np.log2(np.maximum(runs.num_domains, 1))
        latency = intra_latency + np.where(runs.num_domains > 1, network_latency * hops, 0.0)
        return GroupLink(np.minimum(intra_rate, network_rate), latency, runs.num_domains)

    def transfer_link(self, senders: Groups, receivers: Groups) -> TransferLink:
        """Returns what transfers from `senders[row, k]` to `receivers[row, k]` see.

        A network that its node shares is divided by the transfers of the row that leave, or enter,
        that node over it at once. The reached fraction of collectives plays no part.
        """
        tables = self._network_table()
        here, there = self.group[senders], self.group[receivers]
        inside = self.domain[senders] == self.domain[receivers]
        sharers = np.maximum(self._busy(senders, inside), self._busy(receivers, inside))
        shared = np.where(tables.shared[here, there], sharers, 1)
        network = tables.transfer_bytes_per_s[here, there] / np.maximum(shared, 1)
        intra = self._intra_table()
        rate = np.where(inside, intra.transfer_bytes_per_s[here], network)
        latency = np.where(inside, intra.latency_s[here], tables.latency_s[here, there])
        return TransferLink(rate.min(axis=1), latency.max(axis=1))

    def _runs(self, groups: Groups) -> _Runs:
        rows, size = groups.shape
        domain = self.domain[groups]
        starts = np.concatenate([np.ones((rows, 1), bool), domain[:, 1:] != domain[:, :-1]], axis=1)
        run = np.cumsum(starts, axis=1) - 1
        columns = int(run.max()) + 1
        cell = run + columns * np.arange(rows)[:, None]
        node = self.node[groups]
        new_node = starts.copy()
        new_node[:, 1:] |= node[:, 1:] != node[:, :-1]
        first = np.zeros(rows * columns, np.int64)
        first[cell[starts]] = groups[starts]

        def per_run(counted: Bool[np.ndarray, "batch devices"]) -> Int[np.ndarray, "batch nodes"]:
            return np.bincount(cell[counted], minlength=rows * columns).reshape(rows, columns)

        members = per_run(np.ones((rows, size), bool))
        return _Runs(run[:, -1] + 1, members, per_run(new_node), first.reshape(rows, columns))

    def _inside(self, runs: _Runs) -> tuple[PerGroup, PerGroup]:
        """Returns the slowest intra rate and the longest latency of domains with 2+ members."""
        table = self._intra_table()
        group = self.group[runs.first_device]
        several = runs.members > 1
        rate = np.where(several, table.collective_bytes_per_s[group], np.inf).min(axis=1)
        alone = table.collective_bytes_per_s[group[:, 0]]
        latency = np.where(several, table.latency_s[group], 0.0).max(axis=1)
        return np.where((runs.num_domains == 1) & np.isinf(rate), alone, rate), latency

    def _across(
        self, runs: _Runs, users: Float[np.ndarray, "batch nodes"]
    ) -> tuple[PerGroup, PerGroup]:
        """Returns rate and latency of the slowest step of each ring between domains."""
        table = self._network_table()
        rows, columns = runs.members.shape
        column = np.broadcast_to(np.arange(columns), (rows, columns))
        last = column == runs.num_domains[:, None] - 1
        follower = np.where(last, 0, column + 1) % columns
        is_step = (runs.members > 0) & (runs.num_domains[:, None] > 1)

        def next_of(values: np.ndarray) -> np.ndarray:
            return np.take_along_axis(values, follower, axis=1)

        group = self.group[runs.first_device]
        pair = (group, next_of(group))
        lanes = np.minimum(runs.members, next_of(runs.members))
        divided = runs.nodes_used / np.maximum(users, 1)
        lanes = np.where(table.shared[pair], np.minimum(divided, next_of(divided)), lanes)
        rate = np.where(is_step, table.collective_bytes_per_s[pair] * lanes, np.inf)
        latency = np.where(is_step, table.latency_s[pair], 0.0)
        return rate.min(axis=1), latency.max(axis=1)

    def _users(
        self, runs: _Runs, concurrent_groups: int | None
    ) -> Float[np.ndarray, "batch nodes"]:
        """Returns how many groups use the network of each run's node at once."""
        if concurrent_groups is not None:
            return np.full(runs.members.shape, float(concurrent_groups))
        crosses = (runs.members > 0) & (runs.num_domains[:, None] > 1)
        node = self.node[runs.first_device]
        users = np.bincount(node[crosses], minlength=int(self.node[-1]) + 1)
        return users[node].astype(float)

    def _busy(self, ends: Groups, inside: Bool[np.ndarray, "batch devices"]) -> Groups:
        """Returns how many transfers of the row use the network of each end's node."""
        node = self.node[ends]
        num_nodes = int(self.node[-1]) + 1
        cell = node + num_nodes * np.arange(len(node))[:, None]
        counts = np.bincount(cell[~inside], minlength=num_nodes * len(node))
        return counts[cell]

    def _network_table(self) -> _LinkTable:
        order = range(len(self.cluster.nodes))
        links = [[network_between(self.cluster, a, b) for b in order] for a in order]
        return _figures(links)

    def _intra_table(self) -> _LinkTable:
        return _figures([self.cluster.links[group.intra_link] for group in self.cluster.nodes])


def network_between(cluster: ClusterProfile, a: int, b: int) -> Link:
    """Returns the link between nodes of two node groups: their bridge, or the slower network."""
    for bridge in cluster.bridges:
        if a != b and set(bridge.groups) == {a, b}:
            return cluster.links[bridge.link]
    ends = [cluster.links[cluster.nodes[index].network] for index in (a, b)]
    return min(ends, key=_slowness)


def _slowness(link: Link) -> tuple[float, bool]:
    return link.bytes_per_s * link.reached_fraction, not link.shared_by_node


def _domain_of_node(cluster: ClusterProfile) -> Int[np.ndarray, " nodes"]:
    first, parts = 0, []
    for group in cluster.nodes:
        index = np.arange(group.count) // group.nodes_per_domain
        parts.append(first + index)
        first += int(index[-1]) + 1
    return np.concatenate(parts)


def _figures(links: list[Link] | list[list[Link]]) -> _LinkTable:
    flat = [link for item in links for link in (item if isinstance(item, list) else [item])]
    shape = (len(links), -1) if isinstance(links[0], list) else (-1,)

    def column(values: list[float]) -> np.ndarray:
        return np.array(values).reshape(shape)

    return _LinkTable(
        column([link.bytes_per_s * link.reached_fraction for link in flat]),
        column([link.bytes_per_s * link.transfer_fraction for link in flat]),
        column([link.latency_s for link in flat]),
        column([link.shared_by_node for link in flat]).astype(bool),
    )
