"""The file form of a choice: a plan, its stages, and what it is predicted to cost."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from apss_jax.schema.detail import Neighbour, Sensitivity, Timeline
from apss_jax.schema.document import Document, Part

ZeroStage = Literal[0, 1, 2, 3]
Recompute = Literal["none", "selective", "full"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved_1f1b"]


Degree = Annotated[int, Field(ge=1, le=10**6)]  # no cluster of today has more devices
Count = Annotated[int, Field(ge=1, le=10**9)]


class Chunk(Part):
    """A run of decoder layers (0-based); the model's ends belong to the chunks that say so."""

    first_layer: NonNegativeInt
    num_layers: NonNegativeInt
    embedding: bool = False
    head: bool = False


class MemoryBytes(Part):
    """Bytes on one device of a stage at the moment when it holds most."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    other: float
    total: float
    capacity: float


class Stage(Part):
    """What the devices of one pipeline stage do. Devices: tensor fastest, context, then data."""

    chunks: tuple[Chunk, ...]
    devices: tuple[NonNegativeInt, ...] = ()
    device_type: str | None = None  # several joined by '+' where a stage mixes them
    forward_s: float | None = None  # one micro-batch through all chunks, communication included
    backward_s: float | None = None
    memory_bytes: MemoryBytes | None = None
    oom_probability: float | None = None
    fits: bool | None = None
    measured_fraction: float | None = None  # share of the stage's time that was measured


class Breakdown(Part):
    """Where the step's time goes on the busiest stage; adds up to the step time."""

    compute: float
    tensor_comm: float  # tensor, context and expert collectives inside the layers
    pipeline_bubble: float
    pipeline_comm: float
    data_comm: float
    optimizer: float
    other: float


class Cost(Part):
    """What a plan is predicted to cost."""

    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    tokens_per_s: float
    mfu_fraction: float | None
    bubble_fraction: float
    breakdown_s: Breakdown


class Plan(Document):
    """One way to lay the training out."""

    SCHEMA: ClassVar[str] = "apss.plan/1"

    rank: PositiveInt = 1
    tensor_parallel: Degree
    pipeline_parallel: Degree
    data_parallel: Degree
    context_parallel: Degree = 1
    expert_parallel: Degree = 1
    virtual_stages: Degree = 1
    micro_batch: Count
    num_micro_batches: Count
    zero_stage: ZeroStage = 1
    zero_shards: Degree | None = None  # ranks that ZeRO shards over; None: all data x context ones
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    schedule: ScheduleName = "1f1b"
    global_batch: Count | None = None
    seq_len: Count | None = None
    precision: str | None = None
    model: str | None = None
    cluster: str | None = None
    stack: str | None = None
    stages: tuple[Stage, ...] = ()
    cost: Cost | None = None
    provenance: dict[str, float] = Field(default_factory=dict)
    explanation: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON data with every key of the contract, defaults included."""
        return {"schema": self.SCHEMA, **self.model_dump(mode="json")}


class Violation(Part):
    """A rule that a plan breaks, in words."""

    rule: str
    message: str


class SearchCounts(Part):
    """How many candidates there were and what became of them."""

    candidates: NonNegativeInt
    legal: NonNegativeInt
    fits: NonNegativeInt
    dropped: dict[str, NonNegativeInt]
    elapsed_s: dict[str, float]


class Shortfall(Part):
    """What is missing when nothing fits, and the smallest change that would fit."""

    bytes: float  # per device, in the plan that comes closest
    devices: NonNegativeInt | None  # more devices of the same kind that would fit it
    change: str


class SearchResult(Document):
    """The answer of a search."""

    SCHEMA: ClassVar[str] = "apss.search_result/1"

    plans: tuple[Plan, ...]
    search: SearchCounts
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shortfall: Shortfall | None = None
    # What a report draws beside the plans, where one was asked for.
    neighbours: tuple[Neighbour, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()
    timeline: Timeline | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON data; the shortfall and what a report draws only if given."""
        data = self.model_dump(mode="json")
        data["plans"] = [plan.to_json() for plan in self.plans]
        for name in ("shortfall", "neighbours", "sensitivity", "timeline"):
            if not data[name]:
                del data[name]
        return {"schema": self.SCHEMA, **data}


class Alternative(Part):
    """Another plan beside the one that was asked about, and what it would be like."""

    change: str  # in words
    tensor_parallel: Degree
    pipeline_parallel: Degree
    data_parallel: Degree
    context_parallel: Degree
    expert_parallel: Degree
    virtual_stages: Degree
    micro_batch: Count
    zero_stage: ZeroStage
    zero_shards: Degree | None
    sequence_parallel: bool
    recompute: Recompute
    schedule: ScheduleName
    split: tuple[NonNegativeInt, ...]  # layers of each virtual stage, in model order
    step_time_s: float
    speedup: float | None  # step time asked about over this one; None where that is not known
    memory_bytes: float  # of the fullest device
    oom_probability: float  # of the same


class WhatIf(Part):
    """What else could be run in place of a plan."""

    best: Alternative | None  # the first plan of a search; None where none fits, or none was made
    changes: tuple[Alternative, ...] = ()  # the smallest that are legal and fit, fastest first


class Estimate(Document):
    """The answer to 'does this plan run, does it fit, how fast'."""

    SCHEMA: ClassVar[str] = "apss.estimate/1"

    legal: bool
    violations: tuple[Violation, ...] = ()
    plan: Plan
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    what_if: WhatIf | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the estimate as JSON data with every key of the contract."""
        data = self.model_dump(mode="json")
        if self.what_if is None:
            del data["what_if"]
        return {"schema": self.SCHEMA, **data, "plan": self.plan.to_json()}
