"""Matrix products: which ones a list of weights takes, and how long they last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.rates import Rates, TypeValues
from apss_jax.schema.weights import Shard, Weight

TypeTimes = Float[np.ndarray, "settings device_types"]
"""A time for each setting on each device type."""


@dataclass(frozen=True)
class Product:
    """Activations times one matrix, or times one matrix of each of `copies` experts."""

    in_features: int
    out_features: int
    shard: Shard
    multiplied_fraction: float  # of a micro-batch's tokens, for each copy
    copies: int
    is_expert: bool

    @property
    def flops_per_token(self) -> float:
        """Returns the operations of a forward pass for one token of the micro-batch."""
        used = self.multiplied_fraction * self.copies
        return 2.0 * self.in_features * self.out_features * used

    @property
    def output_width(self) -> float:
        """Returns the values written for one token of the micro-batch."""
        return self.out_features * self.multiplied_fraction * self.copies

    @property
    def input_width(self) -> float:
        """Returns the values read for one token of the micro-batch."""
        return self.in_features * self.multiplied_fraction * self.copies


def products_of(weights: Iterable[Weight]) -> tuple[Product, ...]:
    """Returns the products of a part, those that read one input one after another fused.

    Query, key and value are one product, as are up and gate: every stack concatenates them.
    """
    found: list[Product] = []
    for weight in weights:
        if weight.multiplied_fraction == 0:
            continue
        product = Product(
            weight.in_features, weight.out_features, weight.shard,
            weight.multiplied_fraction, weight.copies, weight.is_expert,
        )  # fmt: skip
        if found and _reads_the_same(found[-1], product):
            wider = found[-1].out_features + product.out_features
            found[-1] = replace(product, out_features=wider)
        else:
            found.append(product)
    return tuple(found)


def _reads_the_same(one: Product, other: Product) -> bool:
    return one.shard == other.shard == "column" and replace(one, out_features=0) == replace(
        other, out_features=0
    )


def matmul_s(
    rows: SettingColumn,
    inner: SettingColumn,
    columns: SettingColumn,
    flops_per_s: TypeValues,
    half_size: TypeValues,
) -> TypeTimes:
    """Returns 2MKN / rate, each dimension costing as if `half_size` longer.

    One form for the forward product and both backward ones, as it is symmetric in M, K and N.
    """
    longer = (rows + half_size) * (inner + half_size) * (columns + half_size)
    return 2.0 * longer / flops_per_s


def products_s(
    products: Sequence[Product], tokens: SettingColumn, grid: Grid, rates: Rates
) -> TypeTimes:
    """Returns the time of one forward pass through the products of a layer."""
    total = np.zeros((tokens.shape[0], rates.half_size.shape[0]))
    for product in products:
        total = total + _product_s(product, tokens, grid, rates)
    return total


def _product_s(product: Product, tokens: SettingColumn, grid: Grid, rates: Rates) -> TypeTimes:
    ones = np.ones_like(grid.tensor_parallel)
    inner = product.in_features / (grid.tensor_parallel if product.shard == "row" else ones)
    columns = product.out_features / (grid.tensor_parallel if product.shard == "column" else ones)
    # Expert ranks divide the experts and send each its tokens from all of them.
    gathered = grid.expert_parallel if product.is_expert else ones
    rows = tokens * product.multiplied_fraction * gathered
    one_s = matmul_s(rows, inner, columns, rates.layer_flops_per_s, rates.half_size)
    slowdown = rates.expert_gemm_slowdown if product.is_expert else 1.0
    # A device's experts run as one grouped kernel.
    return slowdown * one_s * (product.copies / gathered) + rates.kernel_s
