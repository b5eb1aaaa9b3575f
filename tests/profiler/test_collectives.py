"""Collectives give what their names say, over one group or several at once."""

import json

import numpy as np
import pytest
from workers import free_port, run_workers

from profiler.sampling import slowest_member

RIGHT = """
import json, jax, numpy as np
from profiler.collectives import make_program
devices = jax.devices()
groups = [[devices[0], devices[2]], [devices[1], devices[3]]]
found = {}
for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "exchange"):
    program = make_program(operation, groups, 16)
    found[operation] = [program.message_bytes, np.asarray(program.call()).tolist()]
print(json.dumps(found))
"""

# Members 1 and 2 form the first group, 3 and 4 the second; each sends its own number.
EXPECTED = {
    "all_reduce": [16, [3.0] * 8 + [7.0] * 8],
    "all_gather": [16, [1.0, 1, 2, 2] * 2 + [3.0, 3, 4, 4] * 2],
    "reduce_scatter": [16, [3.0] * 4 + [7.0] * 4],
    "all_to_all": [16, [1.0, 1, 2, 2] * 2 + [3.0, 3, 4, 4] * 2],
    "send": [16, [0.0] * 4 + [1.0] * 4 + [0.0] * 4 + [3.0] * 4],
    "exchange": [16, [2.0] * 4 + [1.0] * 4 + [4.0] * 4 + [3.0] * 4],
}

LINKS = """
import sys, json, jax
from apss_jax.schema.cluster import ClusterProfile
from profiler.budget import Budget
from profiler.context import MeasuringContext
from profiler.hosts import find_launch, join
from profiler.links import measure_links
from profiler.processes import place_devices
from profiler.timing import Stopwatch

count, rank, port = (int(word) for word in sys.argv[1:])
launch = find_launch(
    {}, coordinator=f"127.0.0.1:{port}", num_processes=count, process_id=rank
)
join(launch)
places = place_devices(f"node-{rank // 2}")
context = MeasuringContext(
    places.devices, places.node_of_device, Stopwatch(repeats=3, statistic="least"),
    Budget.of_minutes(0.3), process_index=rank, num_processes=count, node_names=places.node_names,
)
found = measure_links(context)
print(json.dumps({
    "names": places.node_names,
    "links": {name: link.bytes_per_s for name, link in found.links.items()},
    "operations": sorted({m.operation for m in found.measurements}),
}))
jax.distributed.shutdown()
"""


def test_operations_are_right_on_two_groups_at_once() -> None:
    """Each group gets the result of its own members, and sizes are counted as nccl-tests does."""
    (output,) = run_workers(RIGHT, [[]], devices=4)
    assert json.loads(output.splitlines()[-1]) == EXPECTED


def test_an_operation_takes_as_long_as_its_slowest_member() -> None:
    """A sender that is done early does not count; a process without a member is left out."""
    times_s = np.array([[1.0, 2.0], [3.0, 1.5], [np.nan, np.nan]])
    assert slowest_member(times_s).tolist() == [3.0, 2.0]


@pytest.mark.slow
def test_four_processes_on_two_nodes_measure_links() -> None:
    """All processes agree on what was found: a link inside nodes, a network, all kinds of use."""
    port = free_port()
    outputs = run_workers(LINKS, [["4", str(rank), str(port)] for rank in range(4)])
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0]["names"] == ["node-0", "node-1"]
    assert set(found[0]["links"]) >= {"intra", "network"}
    assert set(found[0]["operations"]) >= {"all_reduce", "send"}
