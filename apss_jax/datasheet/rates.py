"""The rates that device types reach under a stack and a precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from apss_jax.schema.cluster import FULL, ClusterProfile, DeviceType, Precision
from apss_jax.schema.errors import mistake
from apss_jax.schema.stack import Stack

TUNED_FLASH_VERSION = 3  # the first with kernels for one generation of devices alone

FUSED_ROUTING_PASSES = 2.0  # read where the last kernel left them, written where the next reads

TypeValues = Float[np.ndarray, " device_types"]
"""One figure for each device type."""


@dataclass(frozen=True)
class Rates:
    """Reachable rates by device type, and what the stack adds to every kernel."""

    layer_flops_per_s: TypeValues  # matrix products of layers
    head_flops_per_s: TypeValues  # the head stays 16-bit where layers are FP8
    unaligned_slowdown: TypeValues  # of products with rows that matrix units cannot read at once
    half_size: TypeValues  # a dimension this long costs twice its ideal time
    score_flops_per_s: TypeValues  # the two products of attention
    # The same, without flash attention, where the size of a head is not a multiple of 8.
    unaligned_score_flops_per_s: TypeValues
    score_passes: TypeValues  # over the scores in memory, where flash attention is missing
    has_flash: Bool[np.ndarray, " device_types"]
    memory_bytes_per_s: TypeValues
    elementwise_passes: TypeValues
    kernel_s: float
    has_fused_experts: Bool[np.ndarray, " device_types"]
    expert_gemm_slowdown: TypeValues
    routing_passes: TypeValues  # over the values sent to experts
    cast_passes: float  # over the inputs of products, where they are cast to FP8
    cpu_forward_s: float
    launch_power: float
    expert_cpu_forward_s: float
    tensor_pipeline_cpu_s: float
    domain_devices: int  # of the smallest domain
    fused_norm: bool
    pads_vocabulary: bool
    reduces_gate_apart: bool
    whole_logits: bool
    dropout: bool
    keeps_second_products: bool
    activation_factor: float
    logit_bytes: float


def rates_of(
    cluster: ClusterProfile, types: Sequence[str], precision: Precision, stack: Stack
) -> Rates:
    """Returns the rates of the named device types; `InputError` for a missing peak."""
    devices = [cluster.device_types[name] for name in types]
    wide: Precision = "bf16" if precision == "fp8" else precision
    peak = np.array([_peak(d, n, wide) for d, n in zip(devices, types, strict=True)])
    gemm = peak * [d.rates.gemm_fraction for d in devices] / stack.gemm_slowdown
    flash = [_flash_fraction(d, stack, precision) for d in devices]
    plain = [d.rates.attention_fraction for d in devices]
    scores = peak * [f or p for f, p in zip(flash, plain, strict=True)]
    fused = np.array([_fuses_experts(d, stack, precision) for d in devices])
    return Rates(
        layer_flops_per_s=_fp8(devices, types, stack) if precision == "fp8" else gemm,
        head_flops_per_s=gemm,
        unaligned_slowdown=np.array([d.rates.unaligned_gemm_slowdown for d in devices]),
        half_size=np.array([d.rates.gemm_half_size for d in devices]),
        score_flops_per_s=scores,
        unaligned_score_flops_per_s=np.minimum(scores, _plain_units(devices, precision)),
        score_passes=np.array([d.rates.score_passes for d in devices]),
        has_flash=np.array([f is not None for f in flash]),
        memory_bytes_per_s=np.array([_memory_bytes_per_s(d) for d in devices]),
        elementwise_passes=np.array([d.rates.elementwise_passes for d in devices]),
        kernel_s=stack.kernel_s,
        has_fused_experts=fused,
        expert_gemm_slowdown=np.where(fused, 1.0, stack.expert_gemm_slowdown),
        routing_passes=np.where(fused, FUSED_ROUTING_PASSES, stack.routing_passes),
        cast_passes=stack.fp8_cast_passes if precision == "fp8" else 0.0,
        cpu_forward_s=stack.cpu_forward_s,
        launch_power=stack.launch_power,
        expert_cpu_forward_s=stack.expert_cpu_forward_s,
        # Seen in runs whose stages talk over a network, in none on a single node.
        tensor_pipeline_cpu_s=stack.tensor_pipeline_cpu_s * (cluster.num_domains > 1),
        domain_devices=cluster.domain_devices,
        fused_norm=stack.fused_norm,
        pads_vocabulary=stack.pads_vocabulary,
        reduces_gate_apart=stack.reduces_gate_apart,
        whole_logits=stack.whole_logits,
        dropout=stack.dropout,
        keeps_second_products=stack.selective_keeps == "every_second_product",
        activation_factor=stack.activation_factor,
        logit_bytes=stack.logit_bytes,
    )


def _memory_bytes_per_s(device: DeviceType) -> float:
    return device.memory_bytes_per_s * device.rates.memory_fraction


def _fuses_experts(device: DeviceType, stack: Stack, precision: Precision) -> bool:
    return stack.fused_experts and device.rates.fused_expert_kernels and precision == "fp8"


def _plain_units(devices: Sequence[DeviceType], precision: Precision) -> TypeValues:
    """Returns what units other than the matrix units reach; inf where that is not known.

    Matrix units read 16-bit operands in rows of 16 bytes ("Matrix Multiplication Background User's
    Guide", NVIDIA), so that other lengths are left to the FP32 units.
    """
    if precision in FULL:
        return np.full(len(devices), np.inf)
    return np.array([d.peak_flops_per_s.get("fp32", np.inf) for d in devices])


def _flash_fraction(device: DeviceType, stack: Stack, precision: Precision) -> float | None:
    # Flash attention kernels take 16-bit operands alone.
    if not stack.flash_attention or precision in FULL:
        return None
    rates, version = device.rates, stack.flash_attention_version
    usual = rates.flash_attention_fraction
    if version >= TUNED_FLASH_VERSION:
        return rates.tuned_flash_attention_fraction or usual
    return (rates.first_flash_attention_fraction if version == 1 else None) or usual


def _fp8(devices: Sequence[DeviceType], types: Sequence[str], stack: Stack) -> TypeValues:
    peak = np.array([_peak(d, n, "fp8") for d, n in zip(devices, types, strict=True)])
    # A type whose FP8 products nobody timed is taken to reach the share that its 16-bit ones do.
    reached = [d.rates.fp8_gemm_fraction or d.rates.gemm_fraction for d in devices]
    return peak * reached / stack.gemm_slowdown


def _peak(device: DeviceType, name: str, precision: Precision) -> float:
    problem = device.precision_problem(name, precision)
    if problem:
        remedy = "Choose a precision that every device type of the cluster has"
        raise mistake("precision", precision, problem, remedy)
    return device.peak_flops_per_s[precision]
