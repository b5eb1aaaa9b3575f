"""A layout: the degrees of a plan before layers and devices are given; one, or many as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from jaxtyping import Int

from apss_jax.schema.plan import Recompute, ScheduleName
from apss_jax.schema.tables import Setting

RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
SCHEDULES: Final[tuple[ScheduleName, ...]] = ("1f1b", "interleaved_1f1b", "gpipe")
Column = Int[np.ndarray, " batch"]


@dataclass(frozen=True)
class Layout:
    """The degrees and switches of one plan."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    context_parallel: int = 1
    expert_parallel: int = 1
    virtual_stages: int = 1
    micro_batch: int = 1
    zero_stage: int = 1
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    schedule: ScheduleName = "1f1b"
    zero_shards: int | None = None  # None: all data x context ranks

    @property
    def setting(self) -> Setting:
        """Returns what the cost of a layer depends on."""
        return Setting(
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
            micro_batch=self.micro_batch,
            recompute=self.recompute,
            sequence_parallel=self.sequence_parallel,
            pipelined=self.pipeline_parallel > 1 and self.tensor_parallel > 1,
        )

    @property
    def shards(self) -> int:
        """Returns over how many ranks ZeRO spreads what it shards."""
        return self.zero_shards or self.data_parallel * self.context_parallel

    @property
    def replicas(self) -> int:
        """Returns how many groups of ranks each hold all that ZeRO shards."""
        return max(self.data_parallel * self.context_parallel // self.shards, 1)

    @property
    def num_devices(self) -> int:
        """Returns how many devices the layout uses."""
        per_stage = self.tensor_parallel * self.context_parallel * self.data_parallel
        return per_stage * self.pipeline_parallel

    def num_micro_batches(self, global_batch: int) -> int:
        """Returns the micro-batches of one step, rounded down where the batch does not divide."""
        return global_batch // (self.data_parallel * self.micro_batch)


@dataclass(frozen=True)
class Layouts:
    """Many layouts as columns, so that a rule looks at all of them at once.

    `recompute` and `schedule` hold indices into `RECOMPUTE` and `SCHEDULES`; `sequence_parallel`
    holds 0 or 1, `zero_shards` 0 where all data x context ranks share.
    """

    tensor_parallel: Column
    pipeline_parallel: Column
    data_parallel: Column
    context_parallel: Column
    expert_parallel: Column
    virtual_stages: Column
    micro_batch: Column
    zero_stage: Column
    recompute: Column
    sequence_parallel: Column
    schedule: Column
    zero_shards: Column

    def __len__(self) -> int:
        """Returns the number of layouts."""
        return len(self.tensor_parallel)

    def __getitem__(self, index: int) -> Layout:
        """Returns one layout."""
        return next(iter(self.take(np.array([index]))))

    def __iter__(self) -> Iterator[Layout]:
        """Yields each layout."""
        names = [f.name for f in fields(self)]
        for values in zip(*(getattr(self, name).tolist() for name in names), strict=True):
            row: dict[str, Any] = dict(zip(names, values, strict=True))
            row["recompute"] = RECOMPUTE[row["recompute"]]
            row["schedule"] = SCHEDULES[row["schedule"]]
            row["sequence_parallel"] = bool(row["sequence_parallel"])
            row["zero_shards"] = row["zero_shards"] or None
            yield Layout(**row)

    @property
    def pipelined(self) -> Column:
        """Returns 1 where a layout is both pipelined and tensor parallel, else 0."""
        return ((self.pipeline_parallel > 1) & (self.tensor_parallel > 1)).astype(np.int64)

    @property
    def shards(self) -> Column:
        """Returns over how many ranks ZeRO spreads what it shards."""
        ranks = self.data_parallel * self.context_parallel
        return np.where(self.zero_shards > 0, self.zero_shards, ranks)

    def take(self, chosen: np.ndarray) -> Layouts:
        """Returns the layouts at some indices, or where a mask is true."""
        return Layouts(*(getattr(self, f.name)[chosen] for f in fields(self)))

    @staticmethod
    def of(layouts: list[Layout]) -> Layouts:
        """Returns a list of layouts as columns."""
        rows = [
            {
                **{f.name: getattr(one, f.name) for f in fields(Layouts)},
                "recompute": RECOMPUTE.index(one.recompute),
                "schedule": SCHEDULES.index(one.schedule),
                "zero_shards": one.zero_shards or 0,
            }
            for one in layouts
        ]
        return Layouts(
            *(np.array([int(row[f.name]) for row in rows], dtype=np.int64) for f in fields(Layouts))
        )
