"""What the links between the devices of a layout allow."""

from dataclasses import fields

import numpy as np
import pytest

from apss_jax.importers.clusters import load_cluster
from apss_jax.planning import placement
from apss_jax.planning.placement import Placement, assign_devices, device_orders, place
from apss_jax.schema.layout import Layout
from apss_jax.schema.topology import Topology

CLUSTERS = (
    "16x8xH100-SXM5-80GB",
    "3x7xA100-SXM4-80GB",
    "36x4xGB200",
    "amp-homogeneous",
    "amp-het-cluster",
)


def random_layout(rng: np.random.Generator, num_devices: int) -> Layout:
    """Returns degrees that the devices have room for, powers of two or not."""
    tensor = int(rng.choice([d for d in (1, 2, 3, 4, 7, 8) if d <= num_devices]))
    context = int(rng.choice([d for d in (1, 2, 4) if d * tensor <= num_devices]))
    stages = int(rng.integers(1, min(num_devices // (tensor * context), 9) + 1))
    data = int(rng.integers(1, num_devices // (tensor * context * stages) + 1))
    ranks = data * context
    shards = int(rng.choice([d for d in range(1, ranks + 1) if ranks % d == 0]))
    experts = [d for d in range(1, shards + 1) if shards % d == 0]
    expert = int(rng.choice(experts))
    return Layout(tensor, stages, data, context, expert, zero_shards=shards)


def placements(topology: Topology, layout: Layout) -> list[Placement]:
    """Returns a layout on every order of devices that has room for it."""
    grids = [assign_devices(topology, order, layout) for order in device_orders(topology)]
    return [
        place(topology, grid, layout.expert_parallel, layout.replicas)
        for grid in grids
        if grid is not None
    ]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_equal_domains_are_looked_at_once(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found from the first domains is what all groups and stages together give."""
    topology, rng = Topology.of(load_cluster(cluster)), np.random.default_rng(0)
    layouts = [random_layout(rng, topology.num_devices) for _ in range(30)]
    short = [one for layout in layouts for one in placements(topology, layout)]
    monkeypatch.setattr(placement, "_equal_domains", lambda _: None)
    full = [one for layout in layouts for one in placements(topology, layout)]
    for a, b in zip(short, full, strict=True):
        for field in fields(Placement):
            np.testing.assert_allclose(getattr(a, field.name), getattr(b, field.name), rtol=1e-12)


def test_thousands_of_nodes_are_as_cheap_as_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,048 nodes, links are asked about one node for tensor groups, one stage for the rest.

    Without expert ranks, gradients of experts see the links of all others.
    """
    topology = Topology.of(load_cluster("2048x8xH100-SXM5-80GB"))
    asked = []
    group_links = Topology.group_links

    def counted(self: Topology, groups: np.ndarray) -> object:
        asked.append(groups.shape)
        return group_links(self, groups)

    monkeypatch.setattr(Topology, "group_links", counted)
    placements(topology, Layout(8, 16, 128))
    assert asked == [(1, 8), (8, 128)]
