"""A search from question to answer, on small problems."""

import numpy as np
import pytest
from builders import ideal_device, tiny_cluster, tiny_model, tiny_stack

from apss_jax.cost.batched import step_costs
from apss_jax.importers.clusters import load_cluster
from apss_jax.planning import costing
from apss_jax.planning.beginning import SOLVERS
from apss_jax.planning.costing import cost_choices
from apss_jax.planning.cutting import Candidate, Cutter
from apss_jax.planning.inputs import Inputs, gather_inputs
from apss_jax.planning.lineup import Placer
from apss_jax.planning.search import search_plans
from apss_jax.planning.shortlist import shortlist
from apss_jax.planning.tables import CostTables, cost_tables
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import InputError
from apss_jax.schema.model import Model
from apss_jax.schema.plan import Plan, SearchResult

SMALL = {"global_batch": 16, "seq_len": 64, "stack": tiny_stack()}


def search(**changes: object) -> SearchResult:
    """Returns the plans of four tiny layers on four ideal devices."""
    asked = {"model": tiny_model(), "cluster": tiny_cluster(), **SMALL, **changes}
    return search_plans(asked.pop("model"), asked.pop("cluster"), **asked)


def placed(
    model: str, cluster: str, batch: int, **pins: object
) -> tuple[Inputs, CostTables, list[Candidate]]:
    """Returns a question with its tables and candidates."""
    inputs = gather_inputs(model, cluster, global_batch=batch, stack="megatron")
    layouts = list(shortlist(inputs, pins, use_policy=True).layouts)
    tables = cost_tables(inputs, [layout.setting for layout in layouts])
    placer = Placer(inputs)
    return inputs, tables, [one for layout in layouts for one in placer.candidates(layout)]


def covered_layers(plan: Plan) -> list[int]:
    """Returns the layers of a plan in the order in which a micro-batch passes them."""
    chunks = [s.chunks[c] for c in range(plan.virtual_stages) for s in plan.stages]
    return [layer for k in chunks for layer in range(k.first_layer, k.first_layer + k.num_layers)]


def test_plans_are_ranked_by_predicted_time() -> None:
    """Each plan is at least as fast as the next, and ranks count from 1."""
    plans = search().plans
    times = [plan.cost.step_time_s for plan in plans]
    assert times == sorted(times)
    assert [plan.rank for plan in plans] == list(range(1, len(plans) + 1))


def test_a_plan_holds_every_layer_once_and_each_device_once() -> None:
    """Layers 0 to 3 in order, one embedding, one head, no device twice."""
    for plan in search(top=20).plans:
        chunks = [chunk for stage in plan.stages for chunk in stage.chunks]
        devices = [device for stage in plan.stages for device in stage.devices]
        assert covered_layers(plan) == [0, 1, 2, 3]
        assert sum(c.embedding for c in chunks) == sum(c.head for c in chunks) == 1
        assert len(devices) == len(set(devices))


def test_a_plan_says_what_a_step_takes_and_why() -> None:
    """The breakdown adds up, the interval holds the time, and there are reasons."""
    for plan in search().plans:
        cost = plan.cost
        assert sum(cost.breakdown_s.model_dump().values()) == pytest.approx(cost.step_time_s, 1e-6)
        assert cost.step_time_low_s < cost.step_time_s < cost.step_time_high_s
        assert plan.explanation


def test_the_same_question_has_the_same_answer() -> None:
    """Two searches differ in elapsed time alone."""
    answers = []
    for _ in range(2):
        document = search().to_json()
        document["search"].pop("elapsed_s")
        answers.append(document)
    assert answers[0] == answers[1]


def test_pins_hold() -> None:
    """Every plan has the pinned degrees."""
    plans = search(pins={"pipeline_parallel": (2,), "tensor_parallel": (1, 2)}).plans
    assert plans
    assert all(plan.pipeline_parallel == 2 and plan.tensor_parallel in (1, 2) for plan in plans)


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_solver_beats_the_exact_one_by_its_objective(solver: str) -> None:
    """On equal devices without transfers, the exact cuts are the fastest for a pinned layout."""
    pins = {"pipeline_parallel": (2,), "tensor_parallel": (1,), "virtual_stages": (1,)}
    exact, other = (search(solver=name, pins=pins).plans[0] for name in ("exact", solver))
    assert exact.cost.step_time_s <= other.cost.step_time_s * (1 + 1e-6)


def test_faster_links_and_devices_never_cost_more() -> None:
    """Twice the bandwidth, or twice the rate, gives a best plan at least as fast."""
    plain = search().plans[0].cost.step_time_s
    links = {
        name: link.model_copy(update={"bytes_per_s": 2 * link.bytes_per_s})
        for name, link in tiny_cluster().links.items()
    }
    device = ideal_device(peak_flops_per_s={"bf16": 200e12})
    for better in ({"links": links}, {"device_types": {"ideal": device}}):
        assert search(cluster=tiny_cluster(**better)).plans[0].cost.step_time_s <= plain


def starved(memory_bytes: float) -> ClusterProfile:
    """Returns four devices with little memory."""
    return tiny_cluster(device_types={"ideal": ideal_device(memory_bytes=int(memory_bytes))})


def test_where_nothing_fits_the_smallest_change_is_named() -> None:
    """No plan, what is missing, and a change that a new search confirms."""
    model = tiny_model(num_layers=64)
    short = search(model=model, cluster=starved(120_000)).shortfall
    assert short is not None and short.bytes > 0 and short.devices
    extra = short.devices // 4

    def with_nodes(count: int) -> SearchResult:
        cluster = starved(120_000)
        group = cluster.nodes[0].model_copy(update={"count": count})
        return search(model=model, cluster=cluster.model_copy(update={"nodes": (group,)}))

    assert with_nodes(1 + extra).plans
    assert not with_nodes(extra).plans


def test_a_batch_that_no_pinned_degree_divides_is_wrong_input() -> None:
    """16 sequences cannot be divided by 3 replicas."""
    with pytest.raises(InputError, match="global batch of 16"):
        search(pins={"data_parallel": (3,)})


def test_odd_clusters_are_ordinary() -> None:
    """Seven devices, and nodes of five and three, give plans that use what they can."""
    for nodes in (7,), (5, 3):
        groups = tuple(
            tiny_cluster().nodes[0].model_copy(update={"devices": size}) for size in nodes
        )
        plans = search(cluster=tiny_cluster().model_copy(update={"nodes": groups})).plans
        assert plans
        assert all(max(d for s in p.stages for d in s.devices) < sum(nodes) for p in plans)


def test_a_mixed_cluster_gives_the_fast_devices_more_layers() -> None:
    """Where both stages hold one type each, the H100 stage has more layers than the A100 one."""
    cluster = load_cluster("1x8xH100-SXM5-80GB+1x8xA100-SXM4-80GB")
    pins = {"pipeline_parallel": (2,), "virtual_stages": (1,)}
    plan = search_plans("llama-3.1-8b", cluster, global_batch=64, pins=pins).plans[0]
    layers = {s.device_type: sum(c.num_layers for c in s.chunks) for s in plan.stages}
    assert layers["H100-SXM5-80GB"] > layers["A100-SXM4-80GB"]


def test_a_batch_costs_what_its_members_cost_alone() -> None:
    """Grouping and padding change no figure."""
    inputs, tables, candidates = placed("gpt2-xl", "2x4xA100-SXM4-80GB", 32)
    chosen = candidates[:: max(len(candidates) // 20, 1)]
    choices = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact").choices(chosen, tables)
    batch = cost_choices(tables.problem, tables.index, choices)
    for i, choice in enumerate(choices):
        alone = cost_choices(tables.problem, tables.index, [choice])
        np.testing.assert_allclose(alone.step_time_s[0], batch.step_time_s[i], rtol=1e-6)
        used = alone.memory_bytes.shape[1]
        np.testing.assert_allclose(alone.memory_bytes[0], batch.memory_bytes[i, :used], rtol=1e-6)


def test_padding_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wider stages, chunks, slots and batches give the same costs."""
    inputs, tables, candidates = placed("gpt2", "1x4xA100-SXM4-80GB", 16)
    choices = Cutter(inputs.cluster, inputs.stack, tables.problem, "exact").choices(
        candidates[:8], tables
    )
    plain = cost_choices(tables.problem, tables.index, choices)
    monkeypatch.setattr(costing, "STAGE_SIZES", (24,))
    monkeypatch.setattr(costing, "CHUNK_SIZES", (40,))
    monkeypatch.setattr(costing, "SLOT_SIZES", (4000,))
    monkeypatch.setattr(costing, "BATCH_SIZES", (9, 256))
    costing._ready_table.cache_clear()
    padded = cost_choices(tables.problem, tables.index, choices)
    costing._ready_table.cache_clear()
    np.testing.assert_allclose(padded.step_time_s, plain.step_time_s, rtol=1e-6)


def test_problems_of_one_padded_size_compile_once() -> None:
    """Another model, cluster and batch of the same padded sizes compile nothing."""
    pins = {"virtual_stages": (1,)}
    search_plans("gpt2", "1x4xA100-SXM4-80GB", global_batch=16, stack="megatron", pins=pins)
    compiled = step_costs._cache_size()
    search_plans("gpt2-medium", "2x4xA100-SXM4-40GB", global_batch=24, stack="megatron", pins=pins)
    assert step_costs._cache_size() == compiled


def test_a_table_of_layers_is_a_model_like_any_other() -> None:
    """AMP's TransGAN rows are cut and ranked; its rates are per sample."""
    result = search_plans("transgan-amp", "amp-het-model", global_batch=64)
    assert covered_layers(result.plans[0]) == list(range(56))
    assert any("sample" in said for said in result.assumptions)
    assert result.plans[0].cost.mfu_fraction is None


def test_a_table_of_layers_needs_times_for_the_clusters_devices() -> None:
    """A row without the cluster's device is wrong input that names both."""
    with pytest.raises(InputError, match="A100"):
        search_plans("transgan-amp", "1x4xA100-SXM4-80GB", global_batch=64)


def test_the_model_may_be_an_object_or_a_name() -> None:
    """Both give the same best plan."""
    by_name = search_plans("gpt2", "1x4xA100-SXM4-80GB", global_batch=16).plans[0]
    assert isinstance(tiny_model(), Model)
    again = gather_inputs("gpt2", "1x4xA100-SXM4-80GB", global_batch=16)
    by_object = search_plans(again.model, again.cluster, global_batch=16).plans[0]
    assert replace_names(by_name) == replace_names(by_object)


def replace_names(plan: Plan) -> Plan:
    """Returns the plan without what depends on how it was asked for."""
    return plan.model_copy(update={"explanation": ()})
