"""What a trial asks of its processes, and what each of them found: plain data, kept as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

ASSIGNMENT: Final = "assignment.json"


def record_name(stage: int) -> str:
    """Returns the name of the file in which a stage leaves its record."""
    return f"stage-{stage}.json"


@dataclass(frozen=True)
class Plain:
    """Data that is written to and read from a file."""

    def write(self, path: Path) -> None:
        """Writes the data as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Returns the data in a file that `write` made."""
        return cls.from_plain(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """Returns the data from JSON values; lists become tuples."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})


@dataclass(frozen=True)
class Sizes(Plain):
    """The sizes of the GPT that is trained."""

    hidden_size: int = 256
    num_heads: int = 4
    intermediate_size: int = 1024
    vocab_size: int = 2048
    seq_len: int = 128


@dataclass(frozen=True)
class Assignment(Plain):
    """One plan to run, the same for all of its processes; stages in pipeline order.

    Each stage is one process. Emulated times are what its passes take at least.
    """

    schedule: str
    num_micro_batches: int
    micro_batch: int  # of one data-parallel rank
    data_parallel: int
    tensor_parallel: int
    recompute: bool  # whole layers
    layers: tuple[int, ...]
    sizes: dict[str, int]
    steps: int
    emulated_forward_s: tuple[float, ...] | None = None
    emulated_backward_s: tuple[float, ...] | None = None

    @property
    def num_stages(self) -> int:
        """Returns the number of stages, which is that of processes."""
        return len(self.layers)

    @property
    def devices_per_stage(self) -> int:
        """Returns the devices of one process."""
        return self.data_parallel * self.tensor_parallel

    @property
    def dimensions(self) -> Sizes:
        """Returns the model's sizes."""
        return Sizes(**self.sizes)


@dataclass(frozen=True)
class StepRecord(Plain):
    """One step of one stage; moments are those of a clock that all processes of a host share."""

    start_s: float
    end_s: float
    forward_s: float  # of all micro-batches
    backward_s: float
    update_s: float
    cpu_s: float  # processor time of the passes
    loss: float | None  # on the last stage


@dataclass(frozen=True)
class StageRecord(Plain):
    """What one stage measured: alone, and in each step."""

    solo_forward_s: float
    solo_backward_s: float
    solo_update_s: float
    transfer_s: float | None  # of one message to the next stage; None on the last one
    steps: tuple[StepRecord, ...]

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """Returns the record from JSON values."""
        steps = tuple(StepRecord.from_plain(step) for step in data.pop("steps"))
        return cls(steps=steps, **data)
