"""What one training step is: how many sequences, how long, in which number format."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt

from apss_jax.schema.cluster import Precision
from apss_jax.schema.document import Document


class Workload(Document):
    """One training step."""

    SCHEMA: ClassVar[str] = "apss.workload/1"

    global_batch: PositiveInt  # sequences per step
    seq_len: PositiveInt  # tokens per sequence
    precision: Precision = "bf16"

    @property
    def tokens(self) -> int:
        """Returns the tokens of one step."""
        return self.global_batch * self.seq_len
