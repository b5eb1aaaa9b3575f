"""On a cluster in a box, links shaped to known rates are found, and plans follow them."""

import json
from collections.abc import Sequence
from functools import cache

import pytest
from cluster_box import Node, box, why_not
from workers import run_workers

from apss_jax import search_plans
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.plan import Plan

TRIES = 3  # the box shares its processors with whatever else runs
PORT = 9876

SURVEY = """
import json, socket, sys, jax
from apss_jax.importers.clusters import load_device
from apss_jax.schema.cluster import ClusterProfile, NodeGroup
from profiler.bench import CPU_STOPWATCH
from profiler.budget import Budget
from profiler.context import MeasuringContext
from profiler.hosts import find_launch, join
from profiler.links import measure_links
from profiler.processes import place_devices

count, rank, coordinator, minutes = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
join(find_launch({}, coordinator=coordinator, num_processes=count, process_id=rank))
places = place_devices(socket.gethostname())
context = MeasuringContext(
    devices=places.devices, node_of_device=places.node_of_device, node_names=places.node_names,
    stopwatch=CPU_STOPWATCH, budget=Budget.of_minutes(float(minutes)),
    process_index=rank, num_processes=count,
)
links = measure_links(context)
nodes = tuple(
    NodeGroup(
        devices=places.node_of_device.count(node), device_type="T4-16GB",
        intra_link=links.intra_link_of_node[node], network=links.network_of_node[node],
    )
    for node in range(len(places.node_names))
)
profile = ClusterProfile(
    name="box", device_types={"T4-16GB": load_device("T4").device_type}, links=dict(links.links),
    nodes=nodes, link_measurements=links.measurements, pair_rates=links.pair_rates,
    notes=links.notes,
)
print(json.dumps(profile.to_json()))
jax.distributed.shutdown()
"""


@cache
def _reason() -> str | None:
    return why_not()


@pytest.fixture(autouse=True)
def _needs_a_box() -> None:
    reason = _reason()
    if reason is not None:
        pytest.skip(f"no cluster in a box: {reason}")


def _profiled(nodes: Sequence[Node], devices: int, minutes: float) -> ClusterProfile:
    """Returns what one process on each node finds together with the others."""
    address = f"{nodes[0].address}:{PORT}"
    words = [[str(len(nodes)), str(i), address, str(minutes)] for i in range(len(nodes))]
    outputs = run_workers(SURVEY, words, devices=devices, prefixes=[node.prefix for node in nodes])
    return ClusterProfile.from_json(json.loads(outputs[0].splitlines()[-1]))


def _megabits(profile: ClusterProfile, link: str) -> float:
    return profile.links[link].bytes_per_s * 8 / 1e6


def _is_close(found: float, expected: float) -> bool:
    return abs(found / expected - 1) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("megabit", [100, 400])
def test_a_shaped_network_is_measured(megabit: float) -> None:
    """The network is within a tenth of its rate, links inside nodes are faster, and plans see it.

    The two devices of a node divide its network. The search cuts the pipeline there and keeps
    tensor groups inside nodes.
    """
    found = []
    with box([megabit, megabit]) as nodes:
        for _ in range(TRIES):
            profile = _profiled(nodes, 2, 0.5)
            found.append(_megabits(profile, "network"))
            if _is_close(found[-1], megabit):
                break
    assert _is_close(found[-1], megabit), found
    assert _megabits(profile, "intra") > 2 * megabit
    assert profile.links["network"].shared_by_node
    assert _is_cut_at_the_network(_best_plan(profile))
    inside = profile.links["intra"]
    unshaped = profile.model_copy(update={"links": {**profile.links, "network": inside}})
    assert not _is_cut_at_the_network(_best_plan(unshaped))


def _best_plan(profile: ClusterProfile) -> Plan:
    """Returns the best plan on devices as slow as these links."""
    (name,) = profile.device_types
    slow = {"peak_flops_per_s": {"fp32": 1e12}, "memory_bytes_per_s": 1e10, "unsupported": ()}
    device = profile.device_types[name].model_copy(update=slow)
    cluster = profile.model_copy(update={"device_types": {name: device}})
    result = search_plans(
        load_model("gpt2"), cluster, global_batch=16, seq_len=256, precision="fp32"
    )
    return result.plans[0]


def _is_cut_at_the_network(plan: Plan) -> bool:
    """Returns whether each stage, and so each tensor group, is in one of the two nodes."""
    nodes = [{device // 2 for device in stage.devices} for stage in plan.stages]
    return plan.pipeline_parallel > 1 and sorted(map(tuple, nodes)) == [(0,), (1,)]


@pytest.mark.slow
def test_the_slow_node_of_three_is_found() -> None:
    """Of three nodes one has a quarter of the others' network: it is named, with both rates."""
    found = []
    with box([400, 400, 100]) as nodes:
        for _ in range(TRIES):
            profile = _profiled(nodes, 1, 0.6)
            rates = [_megabits(profile, g.network) for g in profile.nodes for _ in range(g.count)]
            found.append(rates)
            if all(map(_is_close, rates, [400, 400, 100])):
                break
    assert all(map(_is_close, found[-1], [400, 400, 100])), found
    assert [note for note in profile.notes if f"the network of {nodes[2].name} reaches" in note]
    assert not [note for note in profile.notes if nodes[0].name in note or nodes[1].name in note]
