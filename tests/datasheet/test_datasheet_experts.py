"""Compute times of layers of experts and of FP8 products, worked out by hand."""

import pytest
from builders import (
    ideal_device,
    ideal_rates,
    tiny_cluster,
    tiny_layer,
    tiny_model,
    tiny_stack,
    tiny_workload,
)

from apss_jax.datasheet.table import unit_table
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.model import Model
from apss_jax.schema.tables import Setting

TOKENS = 2 * 64  # of a micro-batch of 2
FLOPS = 100e12
MEMORY = 1000e9
EXPERTS = MoeMlp(num_experts=4, experts_per_token=2, expert_intermediate_size=32, gated=False)
MOE = tiny_model(layer=tiny_layer(feed_forward=EXPERTS))
EXPERTS_S = 2 * TOKENS * 2 * (8 * 32 + 32 * 8) / FLOPS  # two experts for every token
PASS_S = 2 * TOKENS * 2 * 8 / MEMORY  # over the hidden vectors sent to two experts


def forward_s(
    model: Model, precision: str = "bf16", *, kernels: bool = False, **stack: object
) -> float:
    """Returns the time of a layer's forward pass under a stack with the given fields."""
    device = ideal_device(
        rates=ideal_rates(fused_expert_kernels=kernels),
        peak_flops_per_s={"bf16": FLOPS, "fp8": FLOPS},
    )
    found = unit_table(
        model,
        tiny_cluster(device_types={"ideal": device}),
        tiny_workload(precision=precision),
        tiny_stack(**stack),
        setting=Setting(micro_batch=2),
    )
    return found.compute_s[0, 0, 1]


def test_grouped_products_may_be_slower_than_others() -> None:
    """A slowdown of 2 adds what the experts' products take, and nothing to a dense layer."""
    added_s = forward_s(MOE, expert_gemm_slowdown=2.0) - forward_s(MOE)
    assert added_s == pytest.approx(EXPERTS_S)
    dense = tiny_model()
    assert forward_s(dense, expert_gemm_slowdown=2.0) == forward_s(dense)


def test_routing_moves_what_is_sent_to_experts() -> None:
    """Three more passes read or write the vectors of two experts per token three times."""
    added_s = forward_s(MOE, routing_passes=7.0) - forward_s(MOE, routing_passes=4.0)
    assert added_s == pytest.approx(3 * PASS_S)


def test_fp8_products_cast_what_they_read() -> None:
    """Query-key-value, output, up and down read 8, 8, 8 and 32 values a token; in 16 bits none."""
    dense = tiny_model()
    added_s = forward_s(dense, "fp8", fp8_cast_passes=3.0) - forward_s(dense, "fp8")
    assert added_s == pytest.approx(3 * 2 * TOKENS * 56 / MEMORY)
    assert forward_s(dense, fp8_cast_passes=3.0) == forward_s(dense)


def test_a_layer_of_experts_takes_the_host_longer() -> None:
    """A launch-bound layer of experts takes both launch times, a dense one the common one."""
    host = {"cpu_forward_s": 1e-3, "expert_cpu_forward_s": 2e-3}
    assert forward_s(MOE, **host) == pytest.approx(3e-3)
    assert forward_s(tiny_model(), **host) == pytest.approx(1e-3)


SLOW = {"expert_gemm_slowdown": 2.0, "routing_passes": 7.0, "expert_cpu_forward_s": 1e-3}


def test_fused_experts_take_two_passes_and_no_host() -> None:
    """Nothing is left of slowdown and launches, and of seven passes two."""
    plain_s = forward_s(MOE, "fp8", routing_passes=2.0)
    assert forward_s(MOE, "fp8", kernels=True, fused_experts=True, **SLOW) == pytest.approx(plain_s)


@pytest.mark.parametrize(("precision", "kernels"), [("bf16", True), ("fp8", False)])
def test_experts_are_fused_in_fp8_on_devices_with_such_kernels(
    precision: str, kernels: bool
) -> None:
    """In 16 bits, or without the kernels, the stack's wish changes nothing."""
    alike = [
        forward_s(MOE, precision, kernels=kernels, fused_experts=f, **SLOW) for f in (False, True)
    ]
    assert alike[0] == alike[1]
