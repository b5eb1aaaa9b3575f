"""Megatron's arguments by name, checked when they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apss_jax.importers.pipeline_layout import LayoutTextError, layout_stages
from apss_jax.importers.shell_words import Flags, flags_in
from apss_jax.schema.document import read_text
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.weights import MAX_SIZE

MAX_DEGREE: Final = 1_000_000  # no cluster has more devices
REMEDY: Final = "Correct the value"
TENSOR: Final = "--tensor-model-parallel-size"
PIPELINE: Final = "--pipeline-model-parallel-size"
CONTEXT: Final = "--context-parallel-size"
EXPERT: Final = "--expert-model-parallel-size"
INSTANCES: Final = "--num-distributed-optimizer-instances"
LAYERS: Final = "--num-layers"
PREDICTION: Final = "--mtp-num-layers"
FIRST: Final = ("--decoder-first-pipeline-num-layers",)
LAST: Final = ("--decoder-last-pipeline-num-layers",)
WITH_EMBEDDING: Final = "--account-for-embedding-in-pipeline-split"
WITH_LOSS: Final = "--account-for-loss-in-pipeline-split"
LAYOUT: Final = "--pipeline-model-parallel-layout"
PER_VIRTUAL: Final = "--num-layers-per-virtual-pipeline-stage"
VIRTUAL: Final = "--num-virtual-stages-per-pipeline-rank"


@dataclass(frozen=True)
class MegatronArguments:
    """The flags of one launch; those that nobody asks for stay as they are."""

    flags: Flags
    file: str | None = None

    def wrong(self, flag: str, rule: str, remedy: str = REMEDY) -> InputError:
        """Returns the error that a flag breaks a rule."""
        return mistake(flag, " ".join(self.flags.get(flag, ())), rule, remedy, file=self.file)

    def has(self, *flags: str) -> bool:
        """Returns whether one of the flags is there."""
        return any(flag in self.flags for flag in flags)

    def text(self, flag: str) -> str | None:
        """Returns the first word after a flag, None where the flag is not there."""
        words = self.flags.get(flag)
        if words is None:
            return None
        if not words:
            raise self.wrong(flag, "needs a value", f"Write {flag} VALUE")
        if "$" in words[0]:
            rule = f"holds the variable {words[0]}, which the text does not set"
            raise self.wrong(flag, rule, "Write its value, or add the line that sets it")
        return words[0]

    def size(self, flag: str, default: int, *, most: int = MAX_SIZE) -> int:
        """Returns the whole number after a flag, at least 1."""
        found = self.maybe_size(flag, most=most)
        return default if found is None else found

    def degree(self, flag: str) -> int:
        """Returns a degree of parallelism, 1 where the flag is not there."""
        return self.size(flag, 1, most=MAX_DEGREE)

    def maybe_size(self, *flags: str, least: int = 1, most: int = MAX_SIZE) -> int | None:
        """Returns the whole number after the first flag that is there, None without one."""
        flag = next((flag for flag in flags if flag in self.flags), None)
        text = None if flag is None else self.text(flag)
        if flag is None or text is None:
            return None
        if not re.fullmatch(r"\d{1,10}", text) or not least <= int(text) <= most:
            raise self.wrong(flag, f"must be a whole number from {least} to {most}")
        return int(text)

    def needed(self, flag: str, *, most: int = MAX_SIZE) -> int:
        """Returns the whole number after a flag that must be there."""
        found = self.maybe_size(flag, most=most)
        if found is None:
            raise self.wrong(flag, "is missing", f"Add {flag}, or give the model with --model")
        return found

    @property
    def pipeline_parallel(self) -> int:
        """Returns the pipeline degree."""
        return self.degree(PIPELINE)

    @property
    def counted_layers(self) -> int:
        """Returns the layers, embedding and loss among them where they count as one each."""
        return self.needed(LAYERS) + self.has(WITH_EMBEDDING) + self.has(WITH_LOSS)

    @property
    def layout_stages(self) -> list[str] | None:
        """Returns the symbols of each virtual stage of a layout string, None without one."""
        text = self.text(LAYOUT)
        if text is None:
            return None
        try:
            return layout_stages(text)
        except LayoutTextError as error:
            raise self.wrong(LAYOUT, str(error)) from None

    @property
    def virtual_stages(self) -> int:
        """Returns how many chunks a rank runs, 1 without interleaving; rounded down."""
        stages = self.layout_stages
        if stages is not None:
            return max(len(stages) // self.pipeline_parallel, 1)
        per_chunk = self.maybe_size(PER_VIRTUAL)
        if per_chunk is not None:
            return max(self.counted_layers // self.pipeline_parallel // per_chunk, 1)
        return self.degree(VIRTUAL)


def read_megatron_arguments(source: str) -> MegatronArguments:
    """Returns the arguments in a file, or in a line of flags; raises `InputError`."""
    if source.lstrip().startswith("--"):
        return _with_flags(flags_in(source), None)
    return _with_flags(flags_in(read_text(Path(source), source), file=source), source)


def _with_flags(flags: Flags, file: str | None) -> MegatronArguments:
    arguments = MegatronArguments(flags, file)
    if not arguments.has(*_known()):
        remedy = "Name a launch script or a file with --tensor-model-parallel-size and the like"
        raise mistake("(whole text)", "", "holds no argument of Megatron", remedy, file=file)
    return arguments


def _known() -> Iterable[str]:
    return (TENSOR, PIPELINE, LAYERS, "--micro-batch-size", "--global-batch-size")
