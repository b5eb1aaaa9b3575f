"""The model that is trained: a description of its layers, or a table of layers with given costs."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, model_validator

from apss_jax.schema.document import Document, Part
from apss_jax.schema.layers import Layer, NormKind, norm_weights
from apss_jax.schema.weights import MAX_LAYERS, Count, Size, Weight, count, matrix, table


class Embedding(Part):
    """What turns tokens into vectors."""

    vocab_size: Size
    num_positions: Count = 0  # learned positions; 0 for rotary, ALiBi or relative ones
    num_token_types: Count = 0
    norm: NormKind | None = None
    width: Size | None = None  # narrower than the model, with projections (OPT-350M, ALBERT)
    per_layer_size: Count = 0  # a second table, this wide for every layer (Gemma 4)
    per_layer_vocab_size: Size | None = None  # rows of that table; None: vocab_size

    def weights(self, hidden_size: int, num_layers: int) -> list[Weight]:
        """Returns the tables, projections and norm."""
        width = self.width or hidden_size
        found = [table("tokens", self.vocab_size, width, "row")]
        if self.width:
            found += matrix("embedding_projection", width, hidden_size, "replicated")
        if self.num_positions:
            found.append(table("positions", self.num_positions, hidden_size))
        if self.num_token_types:
            found.append(table("token_types", self.num_token_types, hidden_size))
        if self.norm:
            found += norm_weights("embedding_norm", self.norm, hidden_size)
        return found + self._per_layer_weights(hidden_size, num_layers)

    def _per_layer_weights(self, hidden_size: int, num_layers: int) -> list[Weight]:
        if not self.per_layer_size:
            return []
        width = num_layers * self.per_layer_size
        rows = self.per_layer_vocab_size or self.vocab_size
        found = [table("per_layer_tokens", rows, width, "row")]
        found += matrix("per_layer_projection", hidden_size, width, "column")
        return found + norm_weights("per_layer_norm", "rms", self.per_layer_size)


class Head(Part):
    """What turns vectors into logits (or a pooled vector)."""

    kind: Literal["language", "pooler", "none"] = "language"
    tied: bool = False  # the token table serves as the output matrix
    bias: bool = False
    norm: NormKind | None = "rms"
    num_final_norms: NonNegativeInt = 1
    width: Size | None = None  # of the output matrix's input, with a projection before it

    def weights(self, hidden_size: int, vocab_size: int) -> list[Weight]:
        """Returns the final norm and the output matrix; a tied one is not repeated."""
        found = (
            norm_weights("final_norm", self.norm, hidden_size, self.num_final_norms)
            if self.norm
            else []
        )
        if self.width:
            found += matrix("head_projection", hidden_size, self.width, "replicated")
        if self.kind == "pooler":
            return found + matrix("pooler", hidden_size, hidden_size, "replicated", bias=True)
        if self.kind == "language" and not self.tied:
            width = self.width or hidden_size
            found += matrix("head", width, vocab_size, "column")
        if self.kind == "language" and self.bias:
            found += [table("head.bias", 1, vocab_size, "column")]
        return found


class LayerRun(Part):
    """The same layer, `repeat` times in a row."""

    repeat: Annotated[int, Field(gt=0, le=MAX_LAYERS)] = 1
    layer: Layer


class Tower(Part):
    """A part beside the main stack that feeds it: a vision tower, an adapter."""

    name: str
    hidden_size: Size
    tokens_per_sequence: Count = 0  # 0: no input of this kind in the workload
    layers: tuple[LayerRun, ...] = ()
    other_parameters: NonNegativeInt = 0  # embeddings, norms, projector

    @cached_property
    def num_parameters(self) -> int:
        """Returns what the tower trains."""
        runs = (run.repeat * count(run.layer.weights(self.hidden_size)) for run in self.layers)
        return sum(runs) + self.other_parameters


class TableRow(Part):
    """A layer known by its costs alone, for ONE sample on one device of each type.

    `forward_s[device type][tensor degree as text]`; the tensor-parallel collectives are included
    where `tensor_comm_included` of the table says so.
    """

    name: str
    num_parameters: NonNegativeInt
    forward_s: dict[str, dict[str, PositiveFloat]]
    backward_s: dict[str, dict[str, PositiveFloat]] | None = None  # None: twice the forward pass
    output_bytes: NonNegativeInt  # what the next layer receives, per sample
    saved_bytes: NonNegativeInt  # activations kept for the backward pass, per sample


class LayerTable(Part):
    """A model given as rows of measured layers instead of an architecture."""

    rows: tuple[TableRow, ...]
    tensor_comm_included: bool = True
    source: str | None = None


class Model(Document):
    """A model. Either `layers` (with `embedding` and `head`), or `table`."""

    SCHEMA: ClassVar[str] = "apss.model/1"

    name: str
    source: str | None = None
    notes: tuple[str, ...] = ()  # what was assumed, or could not be described
    hidden_size: Size | None = None
    embedding: Embedding | None = None
    layers: tuple[LayerRun, ...] = ()
    encoder_layers: Count = 0  # how many of `layers` form an encoder before the decoder
    head: Head = Head()
    towers: tuple[Tower, ...] = ()
    mtp_layers: tuple[LayerRun, ...] = ()  # multi-token prediction, beside the head; counted apart
    mtp_parameters: NonNegativeInt = 0  # of those layers, beside their blocks
    max_seq_len: Size | None = None
    table: LayerTable | None = None

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        described = (
            bool(self.layers) and self.hidden_size is not None and self.embedding is not None
        )
        if described == (self.table is not None):
            raise ValueError("must have either hidden_size, embedding and layers, or a table")
        if self.table is not None and not self.table.rows:
            raise ValueError("a table must have at least one row")
        if sum(run.repeat for run in self.layers) > MAX_LAYERS:
            raise ValueError(f"a model has at most {MAX_LAYERS} layers")
        if self.encoder_layers > self.num_layers:
            raise ValueError("encoder_layers must be at most the number of layers")
        return self

    @cached_property
    def layer_sequence(self) -> tuple[Layer, ...]:
        """Returns every layer in order (shared objects for equal ones)."""
        return tuple(run.layer for run in self.layers for _ in range(run.repeat))

    @property
    def num_layers(self) -> int:
        """Returns how many layers a pipeline may be cut between, embedding and head apart."""
        return len(self.table.rows) if self.table else len(self.layer_sequence)

    @cached_property
    def num_parameters(self) -> int:
        """Returns the exact number of trained values; towers included, MTP apart."""
        if self.table:
            return sum(row.num_parameters for row in self.table.rows)
        blocks = sum(run.repeat * count(run.layer.weights(self._hidden)) for run in self.layers)
        ends = count(self.embedding_weights) + count(self.head_weights)
        return blocks + ends + sum(tower.num_parameters for tower in self.towers)

    @property
    def num_mtp_layers(self) -> int:
        """Returns how many layers of multi-token prediction there are."""
        return sum(run.repeat for run in self.mtp_layers)

    @cached_property
    def num_mtp_parameters(self) -> int:
        """Returns what multi-token prediction adds; it shares the embedding and the head."""
        layers = (run.repeat * count(run.layer.weights(self._hidden)) for run in self.mtp_layers)
        return sum(layers) + self.mtp_parameters

    @property
    def _hidden(self) -> int:
        if self.hidden_size is None:
            raise ValueError(f"{self.name} is a table of layers and has no hidden size")
        return self.hidden_size

    @cached_property
    def embedding_weights(self) -> tuple[Weight, ...]:
        """Returns the weights before the first layer; none for a table."""
        if self.embedding is None:
            return ()
        return tuple(self.embedding.weights(self._hidden, self.num_layers))

    @cached_property
    def head_weights(self) -> tuple[Weight, ...]:
        """Returns the weights after the last layer; a tied output matrix is not among them."""
        if self.embedding is None:
            return ()
        return tuple(self.head.weights(self._hidden, self.embedding.vocab_size))
