"""Which device types may still follow, so that the model fits in the memory: exact, by counts.

Devices of a type are alike, so what is left of a pipeline is described by how many of each type are
used. For every such *state* the compiled part finds the first layer from which the stages that are
left can hold the rest, whatever their order. An order that is begun can be completed if and only if
its stages can hold all layers before that one.
"""

from typing import Any, Final

import numpy as np
from jaxtyping import Int64
from numba import boolean, float64, int32, int64

from apss_jax.native import compiled, inner
from apss_jax.partitioning.instance import MEMORY_SLACK_FRACTION
from apss_jax.partitioning.joint import JointInstance

NOWHERE: Final = 1 << 20
"""The start of what cannot be held at all."""


def usable_counts(instance: JointInstance) -> Int64[np.ndarray, "device_types"]:
    """Returns how many stages of each type an order can use at most."""
    return np.minimum(instance.counts, instance.num_stages)


def strides_of(counts: Int64[np.ndarray, "device_types"]) -> Int64[np.ndarray, "device_types"]:
    """Returns what one more stage of each type adds to the number of a state."""
    return np.concatenate([[1], np.cumprod(counts[:-1] + 1)]).astype(np.int64)


def num_states(counts: Int64[np.ndarray, "device_types"]) -> int:
    """Returns how many ways there are to have used some of the devices."""
    return int(np.prod(counts + 1))


def memory_tables(instance: JointInstance, furthest: Any, first_start: Any) -> bool:
    """Writes where stages can end, and where the rest must start; tells whether any order fits.

    `furthest` [stages, device_types, offsets] is the last end of a stage of a type that starts at
    an offset; `first_start` [states] the first start from which what is left holds the rest.
    """
    held = np.stack([instance.state_bytes, instance.saved_bytes])
    sums = np.zeros((2, instance.num_layers + 1))
    np.cumsum(held, axis=1, out=sums[:, 1:])
    allowed = instance.capacity_bytes * (1 + MEMORY_SLACK_FRACTION)
    counts = usable_counts(instance)
    tables = (sums, instance.in_flight, allowed, counts, strides_of(counts))
    return bool(_memory_tables(*tables, furthest, first_start))


@inner
def _fill(sums: Any, in_flight: Any, allowed: Any, furthest: Any) -> None:
    """Writes the last end of a stage of each type from each start, room left for later stages."""
    stages, layers = in_flight.size, sums.shape[1] - 1
    for stage in range(stages):
        held, most = in_flight[stage], layers - (stages - 1 - stage)
        for kind in range(allowed.size):
            end = 0
            for start in range(layers + 1):
                end = max(end, start)
                while (
                    end < most
                    and sums[0, end + 1]
                    - sums[0, start]
                    + held * (sums[1, end + 1] - sums[1, start])
                    <= allowed[kind]
                ):
                    end += 1
                furthest[stage, kind, start] = end


@inner
def _first_start(furthest: Any, stage: int, kind: int, after: int) -> int:
    """Returns the first start from which a stage of a type ends at `after` or later."""
    start = after - 1
    if after > furthest.shape[2] - 1 or start < stage or furthest[stage, kind, start] < after:
        return NOWHERE
    while start > stage and furthest[stage, kind, start - 1] >= after:
        start -= 1
    return start


@compiled(
    boolean(
        *(float64[:, ::1], int64[::1], float64[::1], int64[::1], int64[::1]),
        *(int32[:, :, ::1], int32[::1]),
    )
)
def _memory_tables(
    sums: Any,
    in_flight: Any,
    allowed: Any,
    counts: Any,
    strides: Any,
    furthest: Any,
    first_start: Any,
) -> bool:
    _fill(sums, in_flight, allowed, furthest)
    states = strides[-1] * (counts[-1] + 1)
    for state in range(states - 1, -1, -1):
        stage = 0
        for kind in range(counts.size):
            stage += (state // strides[kind]) % (counts[kind] + 1)
        first_start[state] = sums.shape[1] - 1 if stage == in_flight.size else NOWHERE
        for kind in range(counts.size):
            used = (state // strides[kind]) % (counts[kind] + 1)
            if stage < in_flight.size and used < counts[kind]:
                after = first_start[state + strides[kind]]
                start = _first_start(furthest, stage, kind, after)
                first_start[state] = min(first_start[state], start)
    return bool(first_start[0] == 0)
