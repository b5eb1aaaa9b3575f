"""The traced form of a choice: who runs which units over which links."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int

Array = Any  # numpy on the host, traced inside `jit`


class Strategy(NamedTuple):
    """One strategy, padded: an unused stage or chunk has `first_unit == end_unit`.

    Seconds per byte and per call are those of the slowest group of the stage; a collective of a
    group of n already counts its (n - 1) / n. Those of replicas reduce one shard of the buffer over
    the groups that hold the same; they are per byte of the whole buffer.
    """

    setting: Int[Array, ""]
    first_unit: Int[Array, "chunks stages"]
    end_unit: Int[Array, "chunks stages"]
    has_type: Bool[Array, "stages device_types"]
    comm_s_per_byte: Float[Array, "stages comm_kinds"]
    comm_s_per_call: Float[Array, "stages comm_kinds"]
    gradient_s_per_byte: Float[Array, "stages parameter_kinds"]
    gradient_s_per_call: Float[Array, "stages parameter_kinds"]
    replica_s_per_byte: Float[Array, "stages parameter_kinds"]
    replica_s_per_call: Float[Array, "stages parameter_kinds"]
    transfer_s_per_byte: Float[Array, "chunks stages"]  # to the next virtual stage
    transfer_s_per_call: Float[Array, "chunks stages"]
    in_flight: Float[Array, "chunks stages"]  # micro-batches held between forward and backward
    num_micro_batches: Float[Array, ""]
    shards: Float[Array, ""]  # devices over which ZeRO spreads dense parameters
    expert_shards: Float[Array, ""]
    zero_stage: Int[Array, ""]
    ends_apart: Bool[Array, ""]  # embedding and head stand on different devices
