"""How close predictions came to measurements, per source and per experiment."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import NonNegativeInt

from apss_jax.schema.document import Document, Part


class StepTimeAccuracy(Part):
    """Predicted against measured step times; None where there are too few rows."""

    rows: NonNegativeInt
    mape_percent: float | None
    median_ape_percent: float | None
    spearman: float | None
    interval_coverage_percent: float | None  # of the 80 % interval


class MemoryAccuracy(Part):
    """Predicted against measured peak memory; None without rows."""

    rows: NonNegativeInt
    mape_percent: float | None
    median_ape_percent: float | None


class OomVerdicts(Part):
    """Runs that ran out of memory (positive) or did not, against the prediction."""

    true_positive: NonNegativeInt
    false_positive: NonNegativeInt
    true_negative: NonNegativeInt
    false_negative: NonNegativeInt


class SourceAccuracy(Part):
    """All runs of one source; `rows` are those predicted and those skipped."""

    source: str
    rows: NonNegativeInt
    predicted: NonNegativeInt
    skipped: dict[str, NonNegativeInt]  # by reason
    assumed: dict[str, NonNegativeInt]  # by the field that was blank
    step_time: StepTimeAccuracy
    memory: MemoryAccuracy
    oom: OomVerdicts


class ExperimentAccuracy(Part):
    """Layouts of one model on one cluster: are they ranked right, what would a search have cost.

    The pick is the layout with the least predicted time per sequence among those predicted to fit.
    Regret is its measured time over the best measured one, less 1; None where it did not run.
    """

    source: str
    table: str | None
    model: str | None
    num_gpus: NonNegativeInt | None
    seq_len: NonNegativeInt | None
    rows: NonNegativeInt  # predicted
    spearman: float | None
    regret_percent: float | None
    top3_regret_percent: float | None
    picked_failed: bool


class Validation(Document):
    """The answer of `validate`."""

    SCHEMA: ClassVar[str] = "apss.validation/1"

    sources: tuple[SourceAccuracy, ...]
    experiments: tuple[ExperimentAccuracy, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the document with every key of the contract, defaults and None included."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json")}


class HeldOut(Document):
    """Accuracy on runs that the constants were not fitted on; parts are called as sources are.

    `generic` has each run under the stack of unlisted frameworks, fitted without its framework.
    """

    SCHEMA: ClassVar[str] = "apss.held_out/1"

    sources: tuple[SourceAccuracy, ...]
    parts: tuple[SourceAccuracy, ...]
    experiments: tuple[ExperimentAccuracy, ...]
    generic: tuple[SourceAccuracy, ...]
    generic_parts: tuple[SourceAccuracy, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the document with every key, defaults and None included."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json")}
