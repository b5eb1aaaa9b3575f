"""Class E of the reported cases: clusters whose parts differ."""

from pathlib import Path

import pytest
from legality_problems import cluster_of, facts, layout

from apss_jax.exporters.deepspeed import write_deepspeed
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.legality.check import violations
from apss_jax.legality.launch import Launch
from apss_jax.planning.estimate import estimate_plan
from apss_jax.schema.cluster import LayerMeasurement, Link
from apss_jax.schema.layout import Layout
from apss_jax.schema.plan import Plan
from profiler.findings import warnings_of


def estimated(cluster: str, plan: Layout, model: str = "gpt2", batch: int = 32) -> Plan:
    """Returns the estimate of a layout."""
    profile = load_cluster(cluster)
    return estimate_plan(
        load_model(model), profile, plan, global_batch=batch, seq_len=1024, precision="fp16"
    ).plan


def step_s(plan: Plan) -> float:
    """Returns the step time."""
    assert plan.cost is not None
    return plan.cost.step_time_s


def test_nodes_of_four_and_of_one(tmp_path: Path) -> None:
    """E02: five replicas are legal where the batch divides, and the launch is not DeepSpeed's."""
    uneven = cluster_of(4, 1)
    assert violations(layout(1, 1, 5), facts(cluster=uneven, batch=60)) == ()
    assert [v.rule for v in violations(layout(1, 1, 5), facts(cluster=uneven))] == ["batch"]
    (tmp_path / "hosts").write_text("a slots=4\nb slots=1\n")
    cluster = load_cluster(tmp_path / "hosts", gpu="A100")
    plan = estimate_plan(
        load_model("gpt2"), cluster, Layout(1, 1, 5), global_batch=60, seq_len=1024
    ).plan
    script = write_deepspeed(Launch(plan, load_model("gpt2"), cluster)).files["launch.sh"]
    assert "different numbers of GPUs" in script and "COUNTS=(4 1)" in script


def test_equal_shares_run_at_the_pace_of_the_slowest() -> None:
    """E04: two fast and two slow devices with equal batches are as slow as four slow ones."""
    replicas = Layout(1, 1, 4)
    slow = step_s(estimated("1x4xV100-SXM2-32GB", replicas))
    fast = step_s(estimated("1x4xA100-SXM4-80GB", replicas))
    mixed = step_s(estimated("1x2xA100-SXM4-80GB+1x2xV100-SXM2-32GB", replicas))
    assert mixed == pytest.approx(slow, rel=0.15)
    assert fast < 0.8 * mixed


def test_five_devices_of_three_types() -> None:
    """E05: 32 heads take no tensor 5; a pipeline of 5 has layers by the speed of its devices."""
    cluster = "1x2xL40S-48GB+1x1xH100-SXM5-80GB+1x2xB200-SXM-180GB"
    problem = facts(cluster=load_cluster(cluster))
    assert "heads" in {each.rule for each in violations(layout(5), problem)}
    plan = estimated(cluster, Layout(1, 5, 1), "llama-2-7b", batch=20)
    layers: dict[str, list[int]] = {}
    for stage in plan.stages:
        layers.setdefault(stage.device_type or "", []).append(stage.chunks[0].num_layers)
    assert sum(map(sum, layers.values())) == 32
    assert max(layers["L40S-48GB"]) < min(layers["H100-SXM5-80GB"])
    assert max(layers["H100-SXM5-80GB"]) < min(layers["B200-SXM-180GB"])


def test_joining_hosts_ends_in_time() -> None:
    """E06: processes that do not find each other stop after a time that is told beforehand."""
    from profiler import hosts

    assert 0 < hosts.JOIN_TIMEOUT_S <= 600


def test_a_network_far_below_its_rate() -> None:
    """E07: 3 GB/s where the network gives 25 is a finding, and plans use what was measured."""
    cluster = load_cluster("4x4xA100-SXM4-40GB")
    name = cluster.nodes[0].network
    slow = Link(bytes_per_s=3e9, latency_s=1e-5, provenance="measured")
    measured = cluster.model_copy(update={"links": {**cluster.links, name: slow}})
    assert any(f"link {name} reaches 3 GB/s" in said for said in warnings_of(measured))
    plans = [
        estimate_plan("gpt2", one, Layout(1, 1, 16), global_batch=64, seq_len=1024).plan
        for one in (cluster, measured)
    ]
    assert step_s(plans[1]) > step_s(plans[0])


def test_spread_is_kept_and_told() -> None:
    """E10: a measurement has its repeats and their spread, and a plan an interval around it."""
    assert {"repeats", "spread_fraction"} <= set(LayerMeasurement.model_fields)
    cost = estimated("1x4xA100-SXM4-80GB", Layout(1, 1, 4)).cost
    assert cost is not None
    assert cost.step_time_low_s < cost.step_time_s < cost.step_time_high_s
