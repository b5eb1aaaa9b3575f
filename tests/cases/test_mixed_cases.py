"""Class E of the reported cases: clusters whose parts differ."""

from pathlib import Path
from unittest.mock import patch

import pytest
from legality_problems import cluster_of, facts, layout

from apss_jax.exporters.deepspeed import write_deepspeed
from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.legality.check import violations
from apss_jax.legality.launch import Launch
from apss_jax.planning.estimate import estimate_plan
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape, Link
from apss_jax.schema.errors import InputError
from apss_jax.schema.layout import Layout
from apss_jax.schema.machine import Machine
from apss_jax.schema.plan import Plan
from profiler import hosts
from profiler.findings import warnings_of
from profiler.timing import Samples


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


FREE_PORT = 47_613  # nobody listens there; an answer would be another error


def test_joining_hosts_ends_in_time() -> None:
    """E06: a process that the other never joins ends after its time, with the address in words."""
    launch = hosts.Launch("flags", f"127.0.0.1:{FREE_PORT}", 2, 1)
    with (
        patch.object(hosts, "JOIN_TIMEOUT_S", 1),
        pytest.raises(InputError, match="could not be reached for 1 s") as caught,
    ):
        hosts.join(launch)
    assert launch.coordinator and launch.coordinator in str(caught.value)


def test_adapters_of_a_node_are_told() -> None:
    """E06: which network adapters a node was told to use is part of the profile, and is said."""
    cluster = load_cluster("2x8xH100-SXM5-80GB")
    machine = Machine(environment={"NCCL_IB_HCA": "mlx5_0,mlx5_3,mlx5_5,mlx5_8"})
    said = " ".join(warnings_of(cluster.model_copy(update={"machine": machine})))
    assert "mlx5_0,mlx5_3,mlx5_5,mlx5_8" in said


def with_network(cluster: ClusterProfile, bytes_per_s: float) -> ClusterProfile:
    """Returns a cluster whose network was measured at a rate."""
    name = cluster.nodes[0].network
    link = Link(bytes_per_s=bytes_per_s, latency_s=1e-5, provenance="measured")
    return cluster.model_copy(update={"links": {**cluster.links, name: link}})


def test_a_network_far_below_its_rate() -> None:
    """E07: 3 GB/s where an adapter gives about 20 is a finding; what was measured is planned with.

    At the rate that the report expects there is no finding.
    """
    cluster = load_cluster("4x4xA100-SXM4-40GB")
    slow, usual = with_network(cluster, 3e9), with_network(cluster, 20e9)
    name = cluster.nodes[0].network
    assert any(f"link {name} reaches 3 GB/s" in said for said in warnings_of(slow))
    assert not any(f"link {name} reaches" in said for said in warnings_of(usual))
    times = [
        estimate_plan("gpt2", one, Layout(1, 1, 16), global_batch=16, seq_len=1024).plan
        for one in (usual, slow)
    ]
    assert step_s(times[1]) > 1.2 * step_s(times[0])


SECONDS_PER_STEP = (129.0, 217.0, 125.0, 225.0)  # of one job on four days


def test_spread_is_kept_and_told() -> None:
    """E10: repeats that differ as those days do are one figure with its spread, and a finding."""
    samples = Samples(SECONDS_PER_STEP, "median")
    assert samples.time_s == pytest.approx((129 + 217) / 2)
    assert samples.spread_fraction and samples.spread_fraction > 0.5
    shape = LayerShape(part="embedding", hidden_size=8, vocab_size=16)
    row = LayerMeasurement(
        shape="e", device_type="V100-SXM2-32GB", tensor_parallel=1, micro_batch=1, seq_len=8,
        precision="fp16", forward_s=samples.time_s, repeats=4,
        spread_fraction=samples.spread_fraction,
    )  # fmt: skip
    cluster = load_cluster("1x4xV100-SXM2-32GB")
    profile = cluster.model_copy(update={"shapes": {"e": shape}, "measurements": (row,)})
    kept = ClusterProfile.from_json(profile.to_json()).measurements[0]
    assert (kept.repeats, kept.spread_fraction) == (4, samples.spread_fraction)
    assert any("noisy" in said for said in warnings_of(profile))


def test_a_step_time_has_a_margin() -> None:
    """E10: a plan for such a cluster has an interval around its step time."""
    cost = estimated("16x4xV100-SXM2-32GB", Layout(4, 16, 1), "llama-2-7b", 64).cost
    assert cost is not None
    assert cost.step_time_low_s < cost.step_time_s < cost.step_time_high_s
