"""What names in other people's tables mean: frameworks and networks, by ordered patterns."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from apss_jax.schema.document import Document, Part
from apss_jax.schema.plan import Recompute

SplitHabit = Literal["uniform", "by_cost", "by_module"]
ReportedMemory = Literal["largest_stage", "first_stage"]


def _compiles(text: str) -> str:
    re.compile(text)
    return text


Pattern = Annotated[str, AfterValidator(_compiles)]


class Framework(Part):
    """A framework family: the stack that describes it, and its habits where a run is silent."""

    pattern: Pattern
    stack: str
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    sequence_parallel: bool = False  # with tensor parallelism
    recompute: Recompute = "none"
    accumulates: bool = False  # gradients of several micro-batches, without a pipeline too
    fused_experts: bool = False  # as in a stack: releases that brought such kernels
    split: SplitHabit = "uniform"  # of layers over stages
    reported_memory: ReportedMemory = "largest_stage"
    source: str


class FrameworkList(Document):
    """The known frameworks; the first pattern that matches decides."""

    SCHEMA: ClassVar[str] = "apss.frameworks/1"

    source: str
    frameworks: tuple[Framework, ...]


class Network(Part):
    """What the text of an interconnect means: a link of the library, or a whole cluster."""

    pattern: Pattern
    device: str = ""
    link: str | None = None
    cluster: str | None = None
    source: str

    @model_validator(mode="after")
    def _means_one_thing(self) -> Self:
        if (self.link is None) == (self.cluster is None):
            raise ValueError("a network names either a link or a cluster")
        return self


class NetworkList(Document):
    """The known interconnects; the first pattern that matches decides."""

    SCHEMA: ClassVar[str] = "apss.networks/1"

    source: str
    networks: tuple[Network, ...]


class Contradiction(Part):
    """Measured runs that cannot be right beside others, and why; they still count."""

    runs: tuple[str, ...]  # their `run_id`
    reason: str


class ContradictionList(Document):
    """The runs of the shipped table that contradict the model or each other."""

    SCHEMA: ClassVar[str] = "apss.contradictions/1"

    source: str
    contradictions: tuple[Contradiction, ...]


class RunPart(Part):
    """Some runs of some sources, whose accuracy is told apart. Patterns are of any case."""

    name: str
    sources: tuple[str, ...]
    gpu: Pattern = ""
    framework: Pattern = ""
    precision: Pattern = ""
    model: Pattern = ""
    max_gpus: Annotated[int, Field(gt=0)] | None = None
    max_tensor_parallel: Annotated[int, Field(gt=0)] | None = None
    max_pipeline_parallel: Annotated[int, Field(gt=0)] | None = None
    experts: bool | None = None  # None: models with and without


class RunPartList(Document):
    """The parts of the shipped table that are reported beside whole sources."""

    SCHEMA: ClassVar[str] = "apss.run_parts/1"

    source: str
    parts: tuple[RunPart, ...]
