"""What is known of the model's constants before any run is looked at."""

from __future__ import annotations

from typing import ClassVar, Final, Literal, Self

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from apss_jax.schema.document import Document, Part

EACH: Final = "each"
"""Stands for every stack: one constant for each of them, with the same prior."""
ALL: Final = "all"
"""Stands for every stack: one constant that all of them share."""


class Prior(Part):
    """One constant of the library: where it lives, what it is believed to be, and how firmly.

    The logarithm of the constant is taken as normal around that of `value`. Of two priors for the
    same constant the later one holds, so that a stack may differ from what `each` stack has.
    """

    of: Literal["device", "stack", "link"]
    group: str  # of `groups` for devices and links; a stack's name, "each" or "all" for stacks
    field: str
    value: NonNegativeFloat
    sigma: NonNegativeFloat  # of the logarithm; 0: not fitted, `value` is written as it is
    low: PositiveFloat | None = None
    high: PositiveFloat | None = None
    source: str

    @model_validator(mode="after")
    def _can_be_fitted(self) -> Self:
        if self.sigma > 0 and not (self.low or 0.0) < self.value < (self.high or float("inf")):
            raise ValueError("a fitted constant's value must lie between low and high")
        return self


class Priors(Document):
    """All constants that `make fit` sets, and the rows whose labels it believes."""

    SCHEMA: ClassVar[str] = "apss.priors/1"

    source: str
    groups: dict[str, tuple[str, ...]]  # names of device or link files that share constants
    step_time: tuple[Prior, ...]
    memory: tuple[Prior, ...]
    label_sources: tuple[str, ...]  # whose out-of-memory labels mean that and nothing else

    @model_validator(mode="after")
    def _groups_exist(self) -> Self:
        for prior in (*self.step_time, *self.memory):
            if prior.of != "stack" and prior.group not in self.groups:
                raise ValueError(f"{prior.field} is of {prior.group!r}, which is no group")
        return self
