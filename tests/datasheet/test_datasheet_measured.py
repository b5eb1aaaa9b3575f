"""Measured times: exact where measured, interpolated between, the datasheet's shape beyond."""

import numpy as np
import pytest
from builders import tiny_cluster, tiny_layer, tiny_model, tiny_stack, tiny_workload

from apss_jax.datasheet.measured import correction
from apss_jax.datasheet.table import UnitTables, unit_table
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement, LayerShape
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import Setting, UnitTable

SHAPES = {
    "layer": LayerShape(part="layer", hidden_size=8, layer=tiny_layer()),
    "embedding": LayerShape(part="embedding", hidden_size=8, vocab_size=256),
    "head": LayerShape(part="head", hidden_size=8, vocab_size=256),
}
HOST_S = 1e-6  # far above the device time of the tiny layer


def measured(**changes: object) -> LayerMeasurement:
    """Returns a measurement of the tiny layer at one sample of 64 tokens."""
    fields = {
        "shape": "layer",
        "device_type": "ideal",
        "tensor_parallel": 1,
        "micro_batch": 1,
        "seq_len": 64,
        "precision": "bf16",
        "forward_s": 3e-8,
        "backward_s": 7e-8,
    }
    return LayerMeasurement(**{**fields, **changes})


def cluster_with(*rows: LayerMeasurement) -> ClusterProfile:
    """Returns the tiny cluster with measurements."""
    return tiny_cluster(shapes=SHAPES, measurements=rows)


def table(
    setting: Setting, *rows: LayerMeasurement, stack: Stack | None = None, seq_len: int = 64
) -> UnitTable:
    """Returns the table of the tiny model on a cluster with measurements."""
    workload = tiny_workload(seq_len=seq_len)
    return unit_table(tiny_model(), cluster_with(*rows), workload, stack or tiny_stack(), setting)


def layer_s(*args: object, **kwargs: object) -> tuple[float, float]:
    """Returns the forward and backward time of a layer."""
    return tuple(table(*args, **kwargs).compute_s[:, 0, 1])


@pytest.mark.parametrize("host_s", [0.0, 1e-8, HOST_S])
@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_a_measured_point_gives_the_measured_time(factor: float, host_s: float) -> None:
    """Whatever the datasheet says, the time is the measured one."""
    row = measured(forward_s=3e-8 * factor, backward_s=5e-8 * factor)
    found_s = layer_s(Setting(), row, stack=tiny_stack(cpu_forward_s=host_s))
    assert found_s == pytest.approx((row.forward_s, row.backward_s), rel=1e-12)


@pytest.mark.parametrize("part", ["embedding", "head"])
def test_ends_may_be_measured_too(part: str) -> None:
    """They are found by width and vocabulary."""
    unit = 0 if part == "embedding" else -1
    found = table(Setting(), measured(shape=part))
    assert tuple(found.compute_s[:, 0, unit]) == pytest.approx((3e-8, 7e-8))
    assert found.measured_s[0, unit] == pytest.approx(1e-7)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp16"},
        {"device_type": "ideal", "shape": "head"},
    ],
)
def test_other_precisions_and_shapes_say_nothing(changes: dict[str, object]) -> None:
    """A layer keeps the datasheet's time."""
    assert layer_s(Setting(), measured(**changes)) == layer_s(Setting())


def test_an_unmeasured_backward_pass_follows_the_datasheet() -> None:
    """It takes as many forward passes as the datasheet says."""
    plain_s = layer_s(Setting())
    row = measured(forward_s=1.2 * plain_s[0], backward_s=None)
    assert layer_s(Setting(), row) == pytest.approx((1.2 * plain_s[0], 1.2 * plain_s[1]))


def test_between_measured_micro_batches_times_are_interpolated() -> None:
    """A point between two lies between their corrections: 1.2 and 1.4 times the datasheet."""
    plain_s = {b: layer_s(Setting(micro_batch=b))[0] for b in (1, 2, 4)}
    rows = [measured(micro_batch=b, forward_s=f * plain_s[b]) for b, f in ((1, 1.2), (4, 1.4))]
    found_s = layer_s(Setting(micro_batch=2), *rows)[0]
    assert found_s == pytest.approx(1.3 * plain_s[2])  # 2 is half way from 1 to 4 by ratio


def test_between_measured_lengths_times_are_interpolated() -> None:
    """128 tokens are half way from 64 to 256."""
    plain_s = {s: layer_s(Setting(), seq_len=s)[0] for s in (64, 128, 256)}
    rows = [measured(seq_len=s, forward_s=f * plain_s[s]) for s, f in ((64, 1.2), (256, 1.4))]
    assert layer_s(Setting(), *rows, seq_len=128)[0] == pytest.approx(1.3 * plain_s[128])


def test_beyond_the_measured_points_the_nearest_correction_holds() -> None:
    """A layer 1.3 times slower than its datasheet stays so at 16 samples."""
    plain_s = {b: layer_s(Setting(micro_batch=b))[0] for b in (1, 16)}
    row = measured(forward_s=1.3 * plain_s[1])
    assert layer_s(Setting(micro_batch=16), row)[0] == pytest.approx(1.3 * plain_s[16])


def test_a_launch_bound_time_hardly_grows() -> None:
    """Twenty times the datasheet's time is the host's, which two samples do not change."""
    plain_s = layer_s(Setting())[0]
    row = measured(forward_s=20 * plain_s)
    one_s, two_s, many_s = (layer_s(Setting(micro_batch=b), row)[0] for b in (1, 2, 1000))
    assert two_s == pytest.approx(one_s, rel=1e-3)
    assert many_s == pytest.approx(1.5 * 1000 * plain_s, rel=1e-3)


def test_other_tensor_degrees_use_the_nearest_measured_one() -> None:
    """From a measurement at 2 the datasheet leads to 4, with the collectives counted again."""
    plain_s = {t: layer_s(Setting(tensor_parallel=t))[0] for t in (2, 4)}
    row = measured(tensor_parallel=2, forward_s=1.3 * plain_s[2])
    found = table(Setting(tensor_parallel=4), row)
    assert found.compute_s[0, 0, 1] == pytest.approx(1.3 * plain_s[4])
    assert found.comm_bytes[0, 0, 1] > 0


def test_included_collectives_are_not_counted_again() -> None:
    """A time that contains them comes without bytes and calls, recomputed ones too."""
    row = measured(tensor_parallel=2, forward_s=1e-6, tensor_comm_included=True)
    found = table(Setting(tensor_parallel=2, recompute="full"), row)
    assert found.compute_s[0, 0, 1] == pytest.approx(1e-6)
    assert not found.comm_bytes[:, 0, 1].any()
    assert not found.comm_calls[:, 0, 1].any()
    assert found.comm_bytes[0, 0, 0] > 0


def test_included_collectives_grow_with_the_micro_batch() -> None:
    """At 64 samples the time holds at least what 64 times the bytes take on the link."""
    row = measured(tensor_parallel=2, forward_s=1e-8, tensor_comm_included=True)
    rank_bytes = 4 * (2 * 64 * 64 * 8) / 2  # four one-way collectives, half of each moves
    sent_s = rank_bytes / 100e9
    plain_s = layer_s(Setting(tensor_parallel=2, micro_batch=64))[0]
    one_s = layer_s(Setting(tensor_parallel=2))[0] + sent_s / 64
    found_s = layer_s(Setting(tensor_parallel=2, micro_batch=64), row)[0]
    assert found_s == pytest.approx(1e-8 / one_s * (plain_s + sent_s))


def test_recomputation_repeats_the_measured_pass() -> None:
    """The backward pass is the measured one and a measured forward pass."""
    found = table(Setting(recompute="full"), measured())
    assert tuple(found.compute_s[:, 0, 1]) == pytest.approx((3e-8, 1e-7))
    assert found.measured_s[0, 1] == pytest.approx(3e-8 + 1e-7)


def test_measured_seconds_are_those_at_measured_points() -> None:
    """Beyond them nothing counts as measured, and an unmeasured pass never does."""
    assert table(Setting(), measured()).measured_s[0, 1] == pytest.approx(1e-7)
    assert table(Setting(), measured(backward_s=None)).measured_s[0, 1] == pytest.approx(3e-8)
    for setting in (Setting(micro_batch=2), Setting(tensor_parallel=2), Setting(1, 2)):
        assert table(setting, measured()).measured_s[0, 1] == 0


def test_another_stack_keeps_the_devices_speed_alone() -> None:
    """Under it launches are its own, and nothing counts as measured."""
    ran, planned = tiny_stack(name="ran"), tiny_stack(name="planned", cpu_forward_s=HOST_S)
    plain_s = layer_s(Setting())[0]
    cluster = cluster_with(measured(forward_s=1.3 * plain_s))
    found = UnitTables(tiny_model(), cluster, tiny_workload(), planned, ran).tables([Setting()])[0]
    assert found.compute_s[0, 0, 1] == pytest.approx(HOST_S, rel=1e-6)
    assert found.measured_s.sum() == 0


@pytest.mark.parametrize("measured_s", [0.5, 1.0, 1.9, 2.1, 9.0])
def test_a_correction_reproduces_its_measurement(measured_s: float) -> None:
    """Device and host together give the measured time, the device at most half slower."""
    found = correction(measured_s, device_s=0.9, host_s=0.8)
    together_s = ((found.device_factor * 0.9) ** 6 + found.host_s**6) ** (1 / 6)
    assert together_s == pytest.approx(measured_s)
    assert found.device_factor <= 1.5


def test_measured_launches_grow_no_faster_than_samples() -> None:
    """From one sample on, time per sample never rises."""
    rows = [measured(forward_s=1e-6)]
    settings = [Setting(micro_batch=b) for b in range(1, 40)]
    tables = UnitTables(tiny_model(), cluster_with(*rows), tiny_workload(), tiny_stack())
    times_s = np.array([found.compute_s[0, 0, 1] for found in tables.tables(settings)])
    assert (np.diff(times_s) >= 0).all()
    assert (np.diff(times_s / np.arange(1, 40)) <= 0).all()


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_a_point_with_recomputation_gives_the_measured_time(recompute: str) -> None:
    """Both passes are those that were measured, whatever a compiler repeated."""
    row = measured(recompute=recompute, forward_s=3e-8, backward_s=9e-8)
    found_s = layer_s(Setting(recompute=recompute), measured(), row)
    assert found_s == pytest.approx((3e-8, 9e-8), rel=1e-9)


def test_recomputation_says_nothing_of_layers_without_it() -> None:
    """A point that ran with recomputation is not taken where one without was measured."""
    slow = measured(recompute="full", forward_s=9e-8, backward_s=30e-8)
    assert layer_s(Setting(), measured(), slow) == layer_s(Setting(), measured())


def test_unmeasured_recomputation_repeats_the_measured_forward_pass() -> None:
    """Without a point of its own it adds a forward pass, as the datasheet does."""
    found_s = layer_s(Setting(recompute="full"), measured(forward_s=3e-8, backward_s=7e-8))
    assert found_s == pytest.approx((3e-8, 10e-8))


def saved_bytes(setting: Setting, *rows: LayerMeasurement, **kwargs: object) -> float:
    """Returns what the second unit, a layer, keeps."""
    return float(table(setting, *rows, **kwargs).saved_bytes[1])


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_kept_bytes_are_the_measured_ones(factor: float) -> None:
    """The stack's allocator adds its share to measured bytes as to counted ones."""
    found = saved_bytes(
        Setting(), measured(saved_bytes=5000), stack=tiny_stack(activation_factor=factor)
    )
    assert found == pytest.approx(factor * 5000)


def test_kept_bytes_beyond_the_measured_point_grow_as_counted() -> None:
    """Four samples keep four times what one was measured to keep."""
    assert saved_bytes(Setting(micro_batch=4), measured(saved_bytes=5000)) == pytest.approx(20000)


def test_kept_bytes_of_another_recomputation_are_not_taken() -> None:
    """What a layer without recomputation keeps says nothing of one with it."""
    setting = Setting(recompute="full")
    assert saved_bytes(setting, measured(saved_bytes=5000)) == saved_bytes(setting)


def test_another_stack_keeps_what_it_counts() -> None:
    """Saved activations come from the stack's own file, not from the measured one."""
    cluster, workload = cluster_with(measured(saved_bytes=5000)), tiny_workload()
    other = UnitTables(
        tiny_model(), cluster, workload, tiny_stack(), measured_stack=tiny_stack(name="other")
    )
    (found,) = other.tables([Setting()])
    assert float(found.saved_bytes[1]) == saved_bytes(Setting())
