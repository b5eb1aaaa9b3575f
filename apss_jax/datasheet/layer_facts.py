"""What the formulas read off a layer, computed once for each distinct layer."""

from __future__ import annotations

from dataclasses import dataclass

from apss_jax.datasheet.matmul import Product, products_of
from apss_jax.schema.layers import FeedForward, Layer, LinearAttention, Mixer, MoeMlp, StateSpace
from apss_jax.schema.weights import Weight


@dataclass(frozen=True)
class LayerFacts:
    """One distinct layer of some width; widths are values per token of the micro-batch."""

    hidden_size: int
    weights: tuple[Weight, ...]
    products: tuple[Product, ...]
    mixers: tuple[Mixer, ...]  # the token mixer and the cross-attention
    num_parts: int  # residual branches: mixer, cross-attention, feed-forward part
    num_norms: int
    routed_width: int  # values per token sent to experts, over all of them; 0 without experts

    @property
    def split_width(self) -> float:
        """Returns the values that tensor parallelism divides: products' outputs by column."""
        return sum(p.output_width for p in self.products if p.shard == "column")

    @property
    def row_width(self) -> float:
        """Returns the values that products divided by row read."""
        return sum(p.input_width for p in self.products if p.shard == "row")

    @property
    def input_widths(self) -> tuple[float, float]:
        """Returns the values that products read whole on every tensor rank, and divided ones."""
        whole = sum(p.input_width for p in self.products if p.shard != "row")
        return whole, self.row_width

    @property
    def whole_width(self) -> float:
        """Returns the values that every tensor rank computes: outputs of undivided products."""
        return sum(p.output_width for p in self.products if p.shard == "replicated")

    @property
    def num_gates(self) -> int:
        """Returns the gates beside up projections that tensor parallelism divides."""
        return sum(w.name == "gate" and w.shard == "column" for w in self.weights)

    @property
    def recurrent(self) -> tuple[LinearAttention | StateSpace, ...]:
        """Returns the mixers that carry a state instead of keys and values."""
        return tuple(m for m in self.mixers if isinstance(m, LinearAttention | StateSpace))


def facts_of(layer: Layer, hidden_size: int) -> LayerFacts:
    """Returns the facts of one layer."""
    weights = tuple(layer.weights(hidden_size))
    parts = [p for p in (layer.mixer, layer.cross_attention, layer.feed_forward) if p]
    return LayerFacts(
        hidden_size=hidden_size,
        weights=weights,
        products=products_of(weights),
        mixers=tuple(m for m in (layer.mixer, layer.cross_attention) if m),
        num_parts=len(parts),
        num_norms=layer.num_norms,
        routed_width=_routed_width(layer.feed_forward, hidden_size),
    )


def _routed_width(feed_forward: FeedForward | None, hidden_size: int) -> int:
    if not isinstance(feed_forward, MoeMlp):
        return 0
    return feed_forward.experts_per_token * (feed_forward.latent_size or hidden_size)
