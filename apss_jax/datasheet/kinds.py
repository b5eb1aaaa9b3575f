"""The distinct kinds of unit that a described model has: each is costed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from apss_jax.datasheet.boundaries import carried_values
from apss_jax.datasheet.ends import (
    embedding_costs,
    head_costs,
    prediction_costs,
    tied_parameters,
    tower_costs,
)
from apss_jax.datasheet.grid import Grid, SettingColumn
from apss_jax.datasheet.layer_facts import LayerFacts, facts_of
from apss_jax.datasheet.rates import Rates
from apss_jax.datasheet.unit_costs import UnitCosts, layer_costs
from apss_jax.schema.cluster import LayerShape
from apss_jax.schema.layers import Layer, MoeMlp
from apss_jax.schema.model import Embedding, Model


@dataclass(frozen=True)
class Kinds:
    """Kind 0 is the embedding, then come the distinct layers, last the head.

    Layers of multi-token prediction are kinds too, though they are no units: the head has them.
    """

    model: Model
    hidden_size: int
    embedding: Embedding

    @staticmethod
    def of(model: Model) -> Kinds:
        """Returns the kinds of a model that is a description, not a table."""
        if model.hidden_size is None or model.embedding is None:
            raise ValueError(f"{model.name} is a table of layers")
        return Kinds(model, model.hidden_size, model.embedding)

    @property
    def count(self) -> int:
        """Returns the number of kinds."""
        return len(self._layers) + 2

    @cached_property
    def of_units(self) -> Int[np.ndarray, " units"]:
        """Returns the kind of each unit."""
        layers = [np.full(run.repeat, self._kind_of[run.layer]) for run in self.model.layers]
        return np.concatenate([[0], *layers, [self.count - 1]])

    @cached_property
    def carried_values(self) -> Float[np.ndarray, " units"]:
        """Returns the values per token that leave each unit."""
        return carried_values(self.hidden_size, self.model)

    def shape(self, kind: int) -> LayerShape:
        """Returns what a measurement of one kind names."""
        if 0 < kind < self.count - 1:
            layer = self._layers[kind - 1]
            return LayerShape(part="layer", hidden_size=self.hidden_size, layer=layer)
        return LayerShape(
            part="head" if kind else "embedding",
            hidden_size=self.hidden_size,
            vocab_size=self.embedding.vocab_size,
        )

    def has_experts(self, kind: int) -> bool:
        """Returns whether expert ranks divide anything in this kind."""
        if not 0 < kind < self.count - 1:
            return False
        return isinstance(self._layers[kind - 1].feed_forward, MoeMlp)

    def costs(self, kind: int, grid: Grid, rates: Rates) -> UnitCosts:
        """Returns what the datasheet says about one kind."""
        if kind == 0:
            return embedding_costs(self.hidden_size, self.embedding, self.model, grid, rates)
        if kind == self.count - 1:
            vocab_size = self.embedding.vocab_size
            return head_costs(self.hidden_size, vocab_size, self.model, grid, rates)
        return layer_costs(self._facts[kind - 1], grid, rates)

    def costs_of(self, shape: LayerShape, grid: Grid, rates: Rates) -> UnitCosts:
        """Returns what the datasheet says about a part of this model, or one with other widths."""
        if shape.layer is not None:
            return layer_costs(facts_of(shape.layer, shape.hidden_size), grid, rates)
        vocab_size = shape.vocab_size or self.embedding.vocab_size
        embedding = self.embedding.model_copy(update={"vocab_size": vocab_size})
        widths = {"hidden_size": shape.hidden_size, "embedding": embedding}
        model = self.model.model_copy(update=widths)
        if shape.part == "embedding":
            return embedding_costs(shape.hidden_size, embedding, model, grid, rates)
        return head_costs(shape.hidden_size, vocab_size, model, grid, rates)

    def tied_parameters(self, grid: Grid) -> SettingColumn:
        """Returns what the head's device holds of the token table, apart from the embedding's."""
        return tied_parameters(self.hidden_size, self.embedding.vocab_size, self.model, grid)

    def with_sides(self, costs: list[UnitCosts], grid: Grid, rates: Rates) -> list[UnitCosts]:
        """Returns the costs of all kinds, those of what stands beside the layers added to the ends.

        Towers run with the embedding, multi-token prediction with the head; measurements of an end
        contain neither.
        """
        embedding, *layers, head = costs
        for tower in self.model.towers:
            embedding = embedding.plus(tower_costs(tower, grid, rates), 1, grid)
        total = head
        for run in self.model.mtp_layers:
            total = total.plus(costs[self._kind_of[run.layer]], run.repeat, grid)
        if self.model.mtp_layers:
            beside = prediction_costs(self.hidden_size, head, self.model, grid, rates)
            total = total.plus(beside, 1, grid)
        return [embedding, *layers, total]

    @cached_property
    def _layers(self) -> list[Layer]:
        runs = (*self.model.layers, *self.model.mtp_layers)
        return list(dict.fromkeys(run.layer for run in runs))

    @cached_property
    def _kind_of(self) -> dict[Layer, int]:
        return {layer: 1 + i for i, layer in enumerate(self._layers)}

    @cached_property
    def _facts(self) -> list[LayerFacts]:
        return [facts_of(layer, self.hidden_size) for layer in self._layers]
