"""Intervals of step times: independent errors together, wider beyond what was timed."""

import math
from dataclasses import replace

import pytest

from apss_jax.importers.clusters import load_cluster, load_stack
from apss_jax.importers.load import load_model
from apss_jax.planning.uncertainty import (
    Reach,
    doublings_beyond,
    reach_of,
    spans_of,
    step_time_error_fraction,
    widened_error_fraction,
)
from apss_jax.schema.layout import Layout
from apss_jax.schema.stack import DeviceError, Spans
from apss_jax.schema.workload import Workload

WORKLOAD = Workload(global_batch=64, seq_len=4096, precision="fp8")
NEAR = Reach(has_experts=False, domain_doublings=0.0, far_doublings=0.0, device_error_fraction=0.0)


def test_independent_errors_add_up_as_squares_of_logarithms() -> None:
    """Errors of exp(0.3) and exp(0.4) give exp(0.5)."""
    found = widened_error_fraction(math.expm1(0.3), math.expm1(0.4))
    assert found == pytest.approx(math.expm1(0.5))


def test_measured_layers_have_an_error_of_their_own() -> None:
    """Half of the compute measured: the mean of both stated errors."""
    stack = load_stack("nemo").model_copy(
        update={"step_time_error_fraction": 0.2, "measured_error_fraction": 0.1}
    )
    assert step_time_error_fraction(stack, NEAR, 0.5) == pytest.approx(0.15)


def test_errors_on_device_types_of_their_own_hold_there() -> None:
    """The widest of the types in use; types that no entry names have the stack's."""
    entry = DeviceError(devices=("A", "B"), step_time_error_fraction=0.4)
    assert _errors_on(entry, ("A",), ("C",), ("C", "B"), ()) == pytest.approx([0.4, 0.2, 0.4, 0.2])


def test_errors_in_fp8_are_apart() -> None:
    """What is known of FP8 says nothing of wider precisions; what tells of no precision, of all."""
    entry = DeviceError(devices=("A",), fp8=True, step_time_error_fraction=0.4)
    assert _errors_on(entry, ("A",)) == pytest.approx([0.2])
    assert _errors_on(entry, ("A",), fp8=True) == pytest.approx([0.4])
    any_precision = entry.model_copy(update={"fp8": None})
    assert _errors_on(any_precision, ("A",), fp8=True) == pytest.approx([0.4])


def _errors_on(entry: DeviceError, *types: tuple[str, ...], fp8: bool = False) -> list[float]:
    """Returns the errors on device types of a stack that has 0.2 elsewhere."""
    update = {"step_time_error_fraction": 0.2, "device_errors": (entry,)}
    stack = load_stack("nemo").model_copy(update=update)
    reaches = [replace(NEAR, device_types=each, fp8=fp8) for each in types]
    return [step_time_error_fraction(stack, reach, 0.0) for reach in reaches]


@pytest.mark.parametrize(
    "reach",
    [
        Reach(True, 0.0, 0.0, 0.0),
        Reach(False, 2.0, 0.0, 0.0),
        Reach(False, 0.0, 2.0, 0.0),
        Reach(False, 0.0, 0.0, 0.3),
    ],
)
def test_whatever_was_hardly_timed_widens(reach: Reach) -> None:
    """Experts, domains, far sizes and unknown devices each make the interval wider."""
    fields = ("expert_error_fraction", "domain_error_fraction", "far_error_fraction")
    stack = load_stack("nemo").model_copy(update=dict.fromkeys(fields, 0.1))
    assert step_time_error_fraction(stack, reach, 0.0) > step_time_error_fraction(stack, NEAR, 0.0)


def test_doublings_beyond_count_both_ends_and_all_sizes() -> None:
    """A quarter of the least and twice the largest are three doublings; what is inside, none."""
    spans = spans_of([{"devices": 8, "seq_len": 2048}, {"devices": 64, "seq_len": 4096}])
    assert doublings_beyond({"devices": 2, "seq_len": 8192}, spans) == 3.0
    assert doublings_beyond({"devices": 16, "seq_len": 2048, "micro_batch": 64}, spans) == 0.0


def test_a_plan_knows_its_experts_and_domains() -> None:
    """Mixtral in FP8 on 4 nodes of 8 GPUs: experts, two doublings of the NVLink domain."""
    model, cluster = load_model("mixtral-8x7b"), load_cluster("4x8xH100-SXM5-80GB")
    reach = reach_of(model, cluster, Layout(8, 1, 4), WORKLOAD, Spans(devices=(1, 8)))
    assert reach == Reach(True, 2.0, 2.0, 0.0, ("H100-SXM5-80GB",), fp8=True)
