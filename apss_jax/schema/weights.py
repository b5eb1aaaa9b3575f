"""The weight matrices of a layer: one list from which parameters, FLOPs and shards all follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

MAX_SIZE: Final = 2**31 - 1  # far above any size of a real model; keeps a wrong file from hanging
MAX_LAYERS: Final = 10_000
Size = Annotated[int, Field(gt=0, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_SIZE)]

Shard = Literal["column", "row", "replicated"]


@dataclass(frozen=True)
class Weight:
    """One kind of weight tensor, `copies` times.

    `shard` says how tensor parallelism cuts it: by output (column), by input (row), or not.
    `multiplied_fraction` is the share of a micro-batch's tokens that each copy is multiplied with:
    1 for an ordinary matrix, experts_per_token / num_experts for an expert, 0 for a look-up table
    or a vector.
    """

    name: str
    in_features: int
    out_features: int
    shard: Shard = "replicated"
    multiplied_fraction: float = 1.0
    copies: int = 1
    is_expert: bool = False

    @property
    def num_parameters(self) -> int:
        """Returns the number of trained values in all copies."""
        return self.in_features * self.out_features * self.copies


def matrix(
    name: str, in_features: int, out_features: int, shard: Shard, *, bias: bool = False
) -> list[Weight]:
    """Returns a dense matrix and, if it has one, its bias."""
    weights = [Weight(name, in_features, out_features, shard)]
    if bias:
        bias_shard: Shard = "column" if shard == "column" else "replicated"
        weights.append(vector(f"{name}.bias", out_features, bias_shard))
    return weights


def vector(name: str, size: int, shard: Shard = "replicated", *, copies: int = 1) -> Weight:
    """Returns a vector of weights, which multiplies nothing as a matrix."""
    return Weight(name, 1, size, shard, multiplied_fraction=0.0, copies=copies)


def table(name: str, rows: int, width: int, shard: Shard = "replicated") -> Weight:
    """Returns a look-up table."""
    return Weight(name, rows, width, shard, multiplied_fraction=0.0)


def count(weights: Iterable[Weight]) -> int:
    """Returns the number of parameters in a list of weights."""
    return sum(w.num_parameters for w in weights)
