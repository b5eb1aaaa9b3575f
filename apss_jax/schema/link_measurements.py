"""What was measured on links: each operation over message sizes, and what each pair reached."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from apss_jax.schema.document import Part

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "exchange"]
COLLECTIVES: Final[tuple[Operation, ...]] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
)
TRANSFERS: Final[tuple[Operation, ...]] = ("send", "exchange")  # one way, both ways at once


class LinkSample(Part):
    """Repeats of one operation on messages of one size, as nccl-tests counts sizes.

    The size is the buffer of one device in an all-reduce and in transfers, what it has received in
    an all-gather, what it sends in a reduce-scatter and an all-to-all.
    """

    message_bytes: PositiveInt
    median_s: PositiveFloat
    fastest_s: PositiveFloat
    repeats: PositiveInt = 1


class LinkFit(Part):
    """time = latency_s + (bytes that cross the slowest link) / bus_bytes_per_s.

    Of S bytes in a group of n cross 2 (n - 1) / n S in an all-reduce, (n - 1) / n S in the other
    collectives and S in transfers (nccl-tests, doc/PERFORMANCE.md).
    """

    latency_s: NonNegativeFloat
    bus_bytes_per_s: PositiveFloat
    error_fraction: NonNegativeFloat | None = None  # median over the samples; None: not known


class LinkMeasurement(Part):
    """One operation over groups of equal size, alone or with other groups at the same time."""

    operation: Operation
    link: str | None = None  # the key in `links` that it tells of
    devices: Annotated[tuple[NonNegativeInt, ...], Field(min_length=2)]  # the first of the groups
    concurrent_groups: PositiveInt = 1
    samples: tuple[LinkSample, ...] = ()
    fit: LinkFit | None = None  # None: samples of too few sizes
    provenance: Literal["measured", "analytic", "mocked", "imported"] = "measured"


class PairRate(Part):
    """What one device reached when it alone sent to one other."""

    sender: NonNegativeInt
    receiver: NonNegativeInt
    bytes_per_s: PositiveFloat
    message_bytes: PositiveInt
