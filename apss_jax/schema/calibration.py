"""What was learned from a user's own runs: constants fitted, constants left alone, and why."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from apss_jax.schema.document import Document, Part


class FittedConstant(Part):
    """A constant of the stack that the runs determine."""

    constant: str
    before: float
    after: float
    uncertainty_left_fraction: float  # of the standard deviation that the start value had


class OpenConstant(Part):
    """A constant that keeps its start value, because the runs say too little about it."""

    constant: str
    value: float
    uncertainty_left_fraction: float
    needs: str  # what runs would tell more


class LeftOutRun(Part):
    """A run that took no part, and why."""

    run: str
    reason: str


class FigureFit(Part):
    """How a measured figure is met by the start values and by the calibrated ones."""

    runs: NonNegativeInt
    distinct: NonNegativeInt  # runs of one layout count once, by their geometric mean
    mean_error_before_percent: float | None
    mean_error_after_percent: float | None


class Calibration(Document):
    """The answer of `calibrate`."""

    SCHEMA: ClassVar[str] = "apss.calibration/1"

    stack: str
    base: str
    runs: PositiveInt
    left_out: tuple[LeftOutRun, ...]
    step_time: FigureFit
    memory: FigureFit
    fitted: tuple[FittedConstant, ...]
    not_determined: tuple[OpenConstant, ...]
    step_time_error_fraction: NonNegativeFloat  # half width of the 80 % interval
    memory_error_fraction: NonNegativeFloat
    file: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the document with every key, defaults and None included."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json")}
