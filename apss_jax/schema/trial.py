"""The answer of `trial`: plans that were run for real, and what had been predicted for them."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from apss_jax.schema.document import Document, Part


class StageTrial(Part):
    """What one micro-batch took on one stage, in the step and with all other stages idle."""

    num_layers: int
    forward_s: PositiveFloat  # in the step
    backward_s: PositiveFloat
    solo_forward_s: PositiveFloat
    solo_backward_s: PositiveFloat
    update_s: NonNegativeFloat  # of the weights, once a step
    transfer_s: PositiveFloat | None  # of one message to the next stage; None on the last one
    processor_fraction: NonNegativeFloat  # of the passes' time that its processor worked for them


class PlanTrial(Part):
    """One plan. Errors are predicted over measured, less 1.

    The simulator fed with the stages' times in the very step it is compared with shows how well it
    follows the schedule. What the stages' times alone add to that error is the profile's part.
    """

    rank: PositiveInt  # in the file
    measured_step_s: PositiveFloat  # median of the steps
    fastest_step_s: PositiveFloat
    slowest_step_s: PositiveFloat
    predicted_step_s: PositiveFloat  # from stages measured alone
    predicted_from_step_s: PositiveFloat  # from stages measured in the step
    planned_step_s: PositiveFloat | None  # what the plan said for its own model and cluster
    schedule_error_fraction: float  # of `predicted_from_step_s`
    profile_error_fraction: float  # of `predicted_step_s` over `predicted_from_step_s`
    total_error_fraction: float  # of `predicted_step_s`
    first_loss: float
    last_loss: float
    stages: tuple[StageTrial, ...]


class Trial(Document):
    """All plans that were run; `best` and `predicted_best` are ranks."""

    SCHEMA: ClassVar[str] = "apss.trial/1"

    plans: tuple[PlanTrial, ...]
    best: PositiveInt
    predicted_best: PositiveInt
    emulated: bool  # whether stages slept for what the plan says they take
    platform: str
    cores: PositiveInt | None
    load_before: NonNegativeFloat | None  # runnable processes, mean of the last minute
    load_after: NonNegativeFloat | None
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the document with every key, defaults and None included."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json")}
