"""The cluster as arrays, device by device: where each stands and what its links allow.

Costs are seconds per byte and seconds per call of a one-way collective or a transfer. A group of
n devices moves (n - 1) / n of the whole buffer through each of them. Inside a domain (a node, or
an NVLink domain of several) it moves at the pace of the slowest internal link; across domains each
node passes its part through the network adapters of its members (docs/cost-model.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.schema.cluster import ClusterProfile, Link

PerDevice = Int[np.ndarray, " devices"]
Groups = Int[np.ndarray, "groups ranks"]
PerGroup = Float[np.ndarray, " groups"]


@dataclass(frozen=True, eq=False)
class Topology:
    """Devices in rank order, node by node."""

    cluster: ClusterProfile
    node: PerDevice
    group: PerDevice  # index in `cluster.nodes`
    domain: PerDevice
    device_type: PerDevice  # index in `cluster.used_types`

    @staticmethod
    def of(cluster: ClusterProfile) -> Topology:
        """Returns the arrays of a cluster; domains do not span node groups."""
        groups = cluster.nodes
        counts = np.array([g.count for g in groups])
        group_of_node = np.repeat(np.arange(len(groups)), counts)
        node_in_group = np.concatenate([np.arange(count) for count in counts])
        per_domain = np.array([g.nodes_per_domain for g in groups])[group_of_node]
        starts = node_in_group % per_domain == 0
        domain_of_node = np.cumsum(starts) - 1
        sizes = np.array([g.devices for g in groups])[group_of_node]
        types = np.array([cluster.used_types.index(g.device_type) for g in groups])
        node = np.repeat(np.arange(len(sizes)), sizes)
        group = group_of_node[node]
        return Topology(cluster, node, group, domain_of_node[node], types[group])

    @property
    def num_devices(self) -> int:
        """Returns the number of devices."""
        return len(self.node)

    @cached_property
    def memory_bytes(self) -> Float[np.ndarray, " devices"]:
        """Returns each device's memory."""
        types = self.cluster.device_types
        sizes = [types[name].memory_bytes for name in self.cluster.used_types]
        return np.array(sizes, dtype=float)[self.device_type]

    @cached_property
    def speed_rank(self) -> PerDevice:
        """Returns 0 for the slowest type of device, 1 for the next, ... by its best peak rate."""
        types = self.cluster.device_types
        peaks = [
            max(types[name].peak_flops_per_s.values(), default=0.0)
            for name in self.cluster.used_types
        ]
        return np.argsort(np.argsort(peaks, kind="stable"))[self.device_type]

    def types_present(
        self, devices: Int[np.ndarray, "stages ranks"]
    ) -> Bool[np.ndarray, "stages device_types"]:
        """Returns which device types each stage has."""
        types = np.arange(len(self.cluster.used_types))
        return (self.device_type[devices][:, :, None] == types).any(axis=1)

    def collective_costs(self, groups: Groups) -> tuple[PerGroup, PerGroup]:
        """Returns seconds per byte of the whole buffer and per call; the groups run at once."""
        size = groups.shape[1]
        if size == 1:
            return np.zeros(len(groups)), np.zeros(len(groups))
        moved = (size - 1) / size
        inside_s, latency_s = self._inside(groups)
        domains = _distinct(self.domain[groups])
        if domains.max() == 1:
            return moved * inside_s, latency_s
        outside_s, network_latency_s = self._outside(groups)
        crosses = domains > 1
        per_byte = np.where(crosses, np.maximum(inside_s, outside_s), inside_s)
        hops = np.log2(np.maximum(domains, 2))
        per_call = latency_s + np.where(crosses, network_latency_s * hops, 0.0)
        return moved * per_byte, per_call

    def transfer_costs(
        self, devices: Int[np.ndarray, "stages ranks"]
    ) -> tuple[Float[np.ndarray, " stages"], Float[np.ndarray, " stages"]]:
        """Returns seconds per byte and per message from each stage to the next, all ranks at once.

        The last stage sends to the first, as interleaved schedules do.
        """
        sender, receiver = devices, np.roll(devices, -1, axis=0)
        same = self.domain[sender] == self.domain[receiver]
        pair = (self.group[sender], self.group[receiver])
        inside = np.maximum(*(self._internal.transfer_s[self.group[d]] for d in (sender, receiver)))
        crowd = np.maximum(self._senders(sender, ~same), self._senders(receiver, ~same))
        sharing = np.where(self._network.shared[pair], crowd, 1)
        outside = self._network.transfer_s[pair] * sharing
        per_byte = np.where(same, inside, np.maximum(inside, outside)).max(axis=1)
        wait_in = np.maximum(*(self._internal.latency_s[self.group[d]] for d in (sender, receiver)))
        per_call = np.where(same, wait_in, self._network.latency_s[pair]).max(axis=1)
        return per_byte, per_call

    def _senders(
        self, devices: Int[np.ndarray, "stages ranks"], crosses: Bool[np.ndarray, "stages ranks"]
    ) -> Int[np.ndarray, "stages ranks"]:
        """Returns how many devices of the same stage and node send out of it at once."""
        stages = np.broadcast_to(np.arange(len(devices))[:, None], devices.shape)
        _, where = np.unique(
            stages * (self.node.max() + 1) + self.node[devices], return_inverse=True
        )
        where = where.reshape(devices.shape)
        return np.bincount(where.ravel(), weights=crosses.ravel())[where].astype(int).clip(1)

    def _inside(self, groups: Groups) -> tuple[PerGroup, PerGroup]:
        kinds = self.group[groups]
        per_byte = self._internal.collective_s[kinds]
        shared = self._internal.shared[kinds]
        if shared.any():
            busy = np.bincount(self.node[groups].ravel(), minlength=int(self.node.max()) + 1)
            per_byte = np.where(shared, per_byte * busy[self.node[groups]], per_byte)
        return per_byte.max(axis=1), self._internal.latency_s[kinds].max(axis=1)

    def _outside(self, groups: Groups) -> tuple[PerGroup, PerGroup]:
        """Returns the slowest network pass of each group over its nodes."""
        nodes = np.sort(self.node[groups], axis=1)
        starts = np.diff(nodes, axis=1, prepend=-1) != 0
        position = np.flatnonzero(starts.ravel())
        members = np.diff(np.r_[position, nodes.size])
        run_node = nodes.ravel()[position]
        row = position // nodes.shape[1]
        worst = self._worst_network(groups)
        crosses = (_distinct(self.domain[groups]) > 1)[row]
        crowd = np.bincount(run_node, weights=crosses)[run_node].clip(1)  # groups that share a node
        lanes = np.where(worst.shared[row], 1 / crowd, members)
        slowest_lane = np.minimum.reduceat(lanes, np.flatnonzero(np.r_[True, np.diff(row) != 0]))
        return worst.collective_s / slowest_lane, worst.latency_s

    def _worst_network(self, groups: Groups) -> LinkCosts:
        """Returns the slowest network between any two node groups that a group spans."""
        count = len(self.cluster.nodes)
        spans = (self.group[groups][:, :, None] == np.arange(count)).any(axis=1)
        pairs = spans[:, :, None] & spans[:, None, :]
        several = (spans.sum(axis=1) > 1)[:, None, None]
        pairs &= ~(several & np.eye(count, dtype=bool))
        per_byte = np.where(pairs, self._network.collective_s, 0.0).reshape(len(groups), -1)
        chosen = per_byte.argmax(axis=1)
        flat = [a.ravel()[chosen] for a in self._network.arrays()]
        return LinkCosts(*flat)

    @cached_property
    def _internal(self) -> LinkCosts:
        return LinkCosts.of([self.cluster.links[g.intra_link] for g in self.cluster.nodes])

    @cached_property
    def _network(self) -> LinkCosts:
        links, groups = self.cluster.links, self.cluster.nodes
        bridges = {frozenset(b.groups): links[b.link] for b in self.cluster.bridges}

        def between(a: int, b: int) -> Link:
            own = (links[groups[a].network], links[groups[b].network])
            return bridges.get(frozenset((a, b)), min(own, key=_reached))

        count = range(len(groups))
        return LinkCosts.of([between(a, b) for a in count for b in count]).reshaped(len(groups))


@dataclass(frozen=True, eq=False)
class LinkCosts:
    """Links as arrays."""

    collective_s: Float[np.ndarray, "..."]  # per byte
    transfer_s: Float[np.ndarray, "..."]  # per byte
    latency_s: Float[np.ndarray, "..."]
    shared: Bool[np.ndarray, "..."]

    @staticmethod
    def of(links: list[Link]) -> LinkCosts:
        """Returns the arrays of a list of links."""
        return LinkCosts(
            np.array([1 / _reached(link) for link in links]),
            np.array([1 / (link.bytes_per_s * link.transfer_fraction) for link in links]),
            np.array([link.latency_s for link in links]),
            np.array([link.shared_by_node for link in links]),
        )

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the arrays in order."""
        return self.collective_s, self.transfer_s, self.latency_s, self.shared

    def reshaped(self, size: int) -> LinkCosts:
        """Returns the arrays as square matrices."""
        return LinkCosts(*(a.reshape(size, size) for a in self.arrays()))


def _reached(link: Link) -> float:
    return link.bytes_per_s * link.reached_fraction


def _distinct(values: Int[np.ndarray, "groups ranks"]) -> Int[np.ndarray, " groups"]:
    """Returns how many different values each row has."""
    ordered = np.sort(values, axis=1)
    return 1 + (np.diff(ordered, axis=1) != 0).sum(axis=1)
