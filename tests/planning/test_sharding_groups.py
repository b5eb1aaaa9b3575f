"""States that fewer than all data-parallel ranks share: memory, links and time."""

import numpy as np
import pytest
from builders import tiny_cluster, tiny_model, tiny_stack

from apss_jax.planning.estimate import estimate_plan
from apss_jax.planning.placement import Placement, assign_devices, device_orders, place
from apss_jax.planning.search import search_plans
from apss_jax.schema.layout import Layout, Layouts
from apss_jax.schema.plan import Plan
from apss_jax.schema.topology import Topology

ASKED = {"global_batch": 16, "seq_len": 64, "stack": tiny_stack(gradient_exposed_fraction=1.0)}
NODES = tiny_cluster(devices=4, nodes=2)


def plan(zero_stage: int, zero_shards: int | None, **degrees: int) -> Plan:
    """Returns a costed plan of eight data-parallel ranks on two nodes of four devices."""
    fields = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 8, **degrees}
    layout = Layout(**fields, zero_stage=zero_stage, zero_shards=zero_shards)
    return estimate_plan(tiny_model(), NODES, layout, **ASKED).plan


def placed(layout: Layout) -> Placement:
    """Returns a layout on the two nodes in their order."""
    topology = Topology.of(NODES)
    devices = assign_devices(topology, next(device_orders(topology)), layout)
    assert devices is not None
    return place(topology, devices, layout.expert_parallel, layout.replicas)


def test_a_group_within_a_node_takes_the_nodes_link() -> None:
    """Four ranks gather 3/4 of a buffer at 100 GB/s; two replicas reduce a quarter at 10 GB/s."""
    found = placed(Layout(1, 1, 8, zero_shards=4))
    np.testing.assert_allclose(found.gradient_s_per_byte, 3 / 4 / 100e9)
    np.testing.assert_allclose(found.replica_s_per_byte, 2 * (1 / 2) * (1 / 4) / 10e9)


def test_experts_are_sharded_over_what_expert_ranks_leave_of_a_group() -> None:
    """Of four ranks two hold the same experts: half a buffer at 100 GB/s, reduced half by half."""
    found = placed(Layout(1, 1, 8, expert_parallel=2, zero_shards=4))
    assert found.gradient_s_per_byte[0, 1] == pytest.approx(1 / 2 / 100e9)
    assert found.replica_s_per_byte[0, 1] == pytest.approx(2 * (1 / 2) * (1 / 2) / 10e9)


@pytest.mark.parametrize(("part", "stage"), [("optimizer", 1), ("gradients", 2), ("weights", 3)])
def test_memory_is_divided_by_the_group(part: str, stage: int) -> None:
    """What a ZeRO stage shards takes a quarter over four ranks, an eighth over all eight."""
    whole, quarter, eighth = (
        getattr(plan(zero, shards).stages[0].memory_bytes, part)
        for zero, shards in ((0, None), (stage, 4), (stage, None))
    )
    assert quarter == pytest.approx(whole / 4)
    assert eighth == pytest.approx(whole / 8)


def test_gradients_are_scattered_reduced_and_gathered() -> None:
    """N parameters: 4 + 2 bytes x 3/4 at 100 GB/s, and 4 bytes x 2 x 1/2 x 1/4 at 10 GB/s."""
    found = plan(1, 4)
    assert found.cost is not None and found.stages[0].memory_bytes is not None
    parameters = found.stages[0].memory_bytes.weights / 2
    within_s = parameters * (4 + 2) * 3 / 4 / 100e9
    across_s = parameters * 4 * 2 * (1 / 2) * (1 / 4) / 10e9
    assert found.cost.breakdown_s.data_comm == pytest.approx(within_s + across_s, rel=1e-5)


def test_weights_are_gathered_within_the_group() -> None:
    """ZeRO 3 gathers 2 bytes twice for each of two micro-batches, and reduces gradients once."""
    found = plan(3, 4)
    parameters = found.stages[0].memory_bytes.weights / 2 * 4
    within_s = parameters * (4 + 2 * 2 * 2) * 3 / 4 / 100e9
    across_s = parameters * 4 * 2 * (1 / 2) * (1 / 4) / 10e9
    assert found.cost.breakdown_s.data_comm == pytest.approx(within_s + across_s, rel=1e-5)


def test_a_shard_s_owner_updates_it() -> None:
    """28 bytes for a quarter of the parameters and 6 for each, at 1 TB/s."""
    found = plan(1, 4)
    parameters = found.stages[0].memory_bytes.weights / 2
    expected_s = parameters * (28 / 4 + 6) / 1000e9
    assert found.cost.breakdown_s.optimizer == pytest.approx(expected_s, rel=1e-5)


@pytest.mark.parametrize("degrees", [{}, {"context_parallel": 2, "data_parallel": 4}])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_all_ranks_are_the_default(stage: int, degrees: dict[str, int]) -> None:
    """A group of all ranks changes no figure; one of half of them does."""
    usual, stated, half = (plan(stage, shards, **degrees) for shards in (None, 8, 4))
    assert stated == usual.model_copy(update={"zero_shards": 8, "explanation": stated.explanation})
    assert half.cost != usual.cost


def test_a_searched_plan_leaves_it_open() -> None:
    """Searches shard over all ranks, and refuse to be pinned to fewer."""
    found = search_plans(tiny_model(), NODES, top=3, **ASKED)
    assert all(each.zero_shards is None for each in found.plans)
    with pytest.raises(ValueError, match="zero_shards"):
        search_plans(tiny_model(), NODES, pins={"zero_shards": 4}, **ASKED)


def test_columns_keep_the_group() -> None:
    """Layouts as columns come back as they were, and say over how many ranks each shards."""
    given = [Layout(1, 1, 8), Layout(1, 1, 8, zero_shards=2), Layout(2, 1, 2, context_parallel=2)]
    columns = Layouts.of(given)
    assert list(columns) == given
    assert columns.shards.tolist() == [8, 2, 4] == [one.shards for one in given]
    assert [one.replicas for one in given] == [1, 4, 1]
