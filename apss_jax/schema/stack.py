"""The software that trains: which kernels are fused, what the CPU spends, what overlaps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from apss_jax.schema.document import Document, Part

MASTER_BYTES = 4  # of an FP32 copy of a parameter
BUCKET_BYTES = 25 * 2**20  # of PyTorch's DistributedDataParallel (`bucket_cap_mb`)
Share = Annotated[float, Field(ge=0, le=1)]
Span = tuple[PositiveInt, PositiveInt]


class Spans(Part):
    """Least and largest sizes of some runs; None: none of them has that size."""

    devices: Span | None = None
    hidden_size: Span | None = None
    seq_len: Span | None = None
    micro_batch: Span | None = None


class DeviceError(Part):
    """How far off a stack's step times are on some device types."""

    devices: tuple[str, ...]
    fp8: bool | None = None  # in FP8, or in wider precisions; None: in any
    step_time_error_fraction: PositiveFloat


class Stack(Document):
    """A framework family's constants; `source` says where each set comes from."""

    SCHEMA: ClassVar[str] = "apss.stack/1"

    name: str
    source: str
    time_factor: PositiveFloat = 1.0  # on every computed time: what measured steps say of the rest
    gemm_slowdown: PositiveFloat = 1.0  # relative to the device's own rates
    kernel_s: NonNegativeFloat = 0.0  # fixed cost of one matrix product
    expert_gemm_slowdown: PositiveFloat = 1.0  # beside it, of the grouped products of experts
    routing_passes: NonNegativeFloat = 4.0  # over the values sent to experts, there and back
    fp8_cast_passes: NonNegativeFloat = 0.0  # over the inputs of products: FP8 copies and scales
    cpu_forward_s: NonNegativeFloat = 0.0  # host time to launch one layer's forward pass
    # How sharply the longer of device and host time decides a pass: high where launches are as even
    # as the kernels, so that the host is never late for a few of them alone.
    launch_power: Annotated[float, Field(ge=1)] = 6.0
    expert_cpu_forward_s: NonNegativeFloat = 0.0  # beside it, where a layer routes to experts
    # Beside it, per tensor rank, where a pipeline over several domains is tensor parallel too: both
    # passes of a layer.
    tensor_pipeline_cpu_s: NonNegativeFloat = 0.0
    flash_attention: bool = True
    flash_attention_version: Annotated[int, Field(ge=1, le=9)] = 2
    fused_norm: bool = True
    # Whether every model's vocabulary is padded to a multiple; if not, only where ranks divide it.
    pads_vocabulary: bool = True
    # Whether up and gate, each a module of its own, reduce the gradient of their input apart; with
    # sequence parallelism it is scattered once for both.
    reduces_gate_apart: bool = False
    # Whether every tensor rank gathers all logits and computes the loss of all of them.
    whole_logits: bool = False
    # FP8 products of experts that take in permutation, activation and casts, and whole steps of
    # them that are launched once, on devices with such kernels.
    fused_experts: bool = False
    dropout: bool = False  # masks, and the scores of plain attention before and after it, are kept
    # What selective recomputation keeps of a layer: all but the scores of plain attention, or
    # attention's output and every second product's alone.
    selective_keeps: Literal["all_but_scores", "every_second_product"] = "all_but_scores"
    collective_latency_s: NonNegativeFloat = 0.0  # beside the link's own, per collective
    transfer_latency_s: NonNegativeFloat = 0.0  # beside the link's own, per stage transfer
    transfer_blocking_fraction: Share = 0.0  # of a transfer, during which the sender waits
    context_exposed_fraction: Share = 0.5  # of the key/value exchange that attention does not hide
    gradient_exposed_fraction: Share = 1.0  # of the gradient reduction that no compute hides
    # The same under ZeRO 0, where buckets of whole gradients are reduced as they become final;
    # None: no different.
    replica_exposed_fraction: Share | None = None
    # Where whole tensors have one owner under ZeRO 1 and 2: what reducing gradients to it and
    # sending weights from it takes beside the bytes, per layer and per rank that ZeRO shards over.
    owner_step_s: NonNegativeFloat = 0.0
    # One step of the ring that reduces one bucket of gradients (`BUCKET_BYTES`), beside the link's
    # own time; 0: gradients are reduced whole, or in buckets that grow with the ranks.
    bucket_step_s: NonNegativeFloat = 0.0
    gradient_bytes: PositiveInt = 4  # per parameter, stored
    reduced_gradient_bytes: PositiveInt = 4  # per parameter, sent
    optimizer_bytes: PositiveInt = 12  # per parameter: fp32 master weight and two moments
    gradient_copy_bytes: NonNegativeInt = 0  # beside them, where the step copies to fp32
    logit_bytes: PositiveFloat = 10.0  # per logit kept at the head, all copies
    activation_factor: PositiveFloat = 1.0  # on the counted activations: what the allocator adds
    reserved_bytes: NonNegativeFloat = 0.0  # context, communicators, workspace
    step_s: NonNegativeFloat = 0.0  # once per step: data, logging, clipping
    step_time_error_fraction: PositiveFloat = 0.25  # half width of the 80 % interval, analytic
    # The same on device types, and in a precision, of which enough runs were left out to tell them
    # from the others.
    device_errors: tuple[DeviceError, ...] = ()
    measured_error_fraction: PositiveFloat = 0.15  # the same where all layers are measured
    # Independent of it and beside it: for a model with experts, for each doubling of the domains in
    # use, for each doubling of a size beyond those of the runs that the constants were fitted on.
    expert_error_fraction: NonNegativeFloat = 0.0
    domain_error_fraction: NonNegativeFloat = 0.0
    far_error_fraction: NonNegativeFloat = 0.0
    fitted_spans: Spans = Spans()
    memory_error_fraction: PositiveFloat = 0.08  # standard deviation of the memory prediction

    def optimizer_bytes_of(self, weight_bytes: float) -> float:
        """Returns optimizer bytes per parameter: FP32 weights need no FP32 copies beside them."""
        if weight_bytes >= MASTER_BYTES:
            return max(self.optimizer_bytes - MASTER_BYTES, 0)
        return self.optimizer_bytes + self.gradient_copy_bytes

    def gradient_bytes_of(self, weight_bytes: float) -> float:
        """Returns the bytes of a stored gradient: no fewer than those of its weight."""
        return max(self.gradient_bytes, weight_bytes)

    def error_fraction_on(self, device_types: Iterable[str], *, fp8: bool = False) -> float:
        """Returns the half width of the interval on the least known of some device types."""
        entries = [each for each in self.device_errors if each.fp8 in (None, fp8)]
        known = {name: e.step_time_error_fraction for e in entries for name in e.devices}
        usual = self.step_time_error_fraction
        return max((known.get(name, usual) for name in device_types), default=usual)

    @property
    def bucket_step_s_per_byte(self) -> float:
        """Returns what each rank but one adds to the reduction of a byte of gradients."""
        return self.bucket_step_s / BUCKET_BYTES

    @property
    def exposed_fractions(self) -> tuple[float, float, float, float]:
        """Returns what is not hidden of the gradient reduction, by ZeRO stage."""
        sharded, whole = self.gradient_exposed_fraction, self.replica_exposed_fraction
        return (sharded if whole is None else whole, sharded, sharded, sharded)

    @property
    def tells_pipelines(self) -> bool:
        """Returns whether a layer costs something else where a pipeline is tensor parallel."""
        return self.tensor_pipeline_cpu_s > 0
