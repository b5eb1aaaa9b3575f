"""What names in other people's tables mean: frameworks and networks, by ordered patterns."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from apss_jax.schema.document import Document, Part

SplitHabit = Literal["uniform", "by_cost"]
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
