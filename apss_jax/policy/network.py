"""DPSN: from features of a problem to a score of every way to cut it.

An encoder of the pieces (attention with learned slopes over their distance) gives each piece a few
coefficients: how much a place outside the reaches costs it, how much a boundary, and from which
load on it is overloaded; together they say what the slowest piece costs. The score of a partition
is the sum over its pieces less the price of the slowest, so that the most likely partition, its
likelihood and samples follow from one pass along the pieces (`decode`).
The weights know no size: the same serve any number of layers, pieces and places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from apss_jax.policy.chains import Chain
from apss_jax.policy.features import (
    BOUNDARY,
    PIECE_FEATURES,
    PLACE_FEATURES,
    Features,
    features_of,
)

# Coefficients of a piece: of boundaries, three thresholds on its time with the price of exceeding
# each, the price of its time and of its idleness, its say in the price of the slowest piece, and
# two thresholds on its gradient work.
_TIME_HINGES, _GRADIENT_HINGES = 3, 2
_NUM_COEFFICIENTS: Final = 4 + 2 * _TIME_HINGES + 2 * _GRADIENT_HINGES
_STEEPEST: Final = 30.0
_LEAST_PRICE: Final = 0.01


@dataclass(frozen=True)
class NetworkConfig:
    """The sizes of a network."""

    width: int = 32
    heads: int = 4
    blocks: int = 3
    place_width: int = 16


class PiecePotentials(NamedTuple):
    """What the network says of each piece."""

    places: Float[jax.Array, "stages window"]
    """Score of each piece for ending at each place, its boundary included."""
    time_price: Float[jax.Array, "stages"]
    idle_price: Float[jax.Array, "stages"]
    hinge_price: Float[jax.Array, "stages _"]
    hinge_at: Float[jax.Array, "stages _"]
    gradient_price: Float[jax.Array, "stages _"]
    gradient_at: Float[jax.Array, "stages _"]


class Potentials(NamedTuple):
    """What the network says of one problem."""

    pieces: PiecePotentials
    slowest_price: Float[jax.Array, ""]
    """What is taken off the score for each least limit that the slowest piece takes more."""


class Block(nnx.Module):
    """Attention among the pieces, then two layers on each."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs) -> None:
        width, self.heads = config.width, config.heads
        self.before_attention = nnx.LayerNorm(width, rngs=rngs)
        self.before_hidden = nnx.LayerNorm(width, rngs=rngs)
        self.mixed = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.joined = nnx.Linear(width, width, rngs=rngs)
        self.hidden = nnx.Linear(width, 2 * width, rngs=rngs)
        self.out = nnx.Linear(2 * width, width, rngs=rngs)
        slopes = jnp.linspace(-3.0, 1.0, config.heads)
        self.slope = nnx.Param(slopes)
        self.lean = nnx.Param(jnp.zeros(config.heads))
        self.same_stage = nnx.Param(jnp.zeros(config.heads))

    def __call__(
        self,
        pieces: Float[jax.Array, "stages features"],
        is_piece: Bool[jax.Array, "stages"],
        stage: Int[jax.Array, "stages"],
    ) -> Float[jax.Array, "stages features"]:
        """Returns the pieces with what they learned of each other."""
        attended = self._attended(self.before_attention(pieces), is_piece, stage)
        pieces = pieces + self.joined(attended)
        hidden = jax.nn.relu(self.hidden(self.before_hidden(pieces)))
        return pieces + self.out(hidden)

    def _attended(
        self,
        pieces: Float[jax.Array, "stages features"],
        is_piece: Bool[jax.Array, "stages"],
        stage: Int[jax.Array, "stages"],
    ) -> Float[jax.Array, "stages features"]:
        count, width = pieces.shape
        split = self.mixed(pieces).reshape(count, 3, self.heads, width // self.heads)
        query, key, value = split[:, 0], split[:, 1], split[:, 2]
        away = jnp.arange(count)[:, None] - jnp.arange(count)[None]
        scores = jnp.einsum("ahc,bhc->hab", query, key) / (width // self.heads) ** 0.5
        scores -= jnp.exp(self.slope[...])[:, None, None] * jnp.abs(away)[None]
        scores += self.lean[...][:, None, None] * jnp.clip(away, -4, 4)[None]
        is_same = (stage[:, None] == stage[None]) & (away != 0)
        scores += self.same_stage[...][:, None, None] * is_same[None]
        scores = jnp.where(is_piece[None, None], scores, -1e9)
        mixed = jnp.einsum("hab,bhc->ahc", jax.nn.softmax(scores, axis=-1), value)
        return mixed.reshape(count, width)


class Network(nnx.Module):
    """The whole network, on one problem."""

    def __init__(self, config: NetworkConfig, rngs: nnx.Rngs) -> None:
        width = config.width
        self.enter = nnx.Linear(PIECE_FEATURES, 2 * width, rngs=rngs)
        self.entered = nnx.Linear(2 * width, width, rngs=rngs)
        self.pooled = nnx.Linear(width, width, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.blocks)])
        self.leave = nnx.LayerNorm(width, rngs=rngs)
        self.coefficients = nnx.Linear(width, _NUM_COEFFICIENTS, rngs=rngs)
        self.place_enter = nnx.Linear(PLACE_FEATURES, config.place_width, rngs=rngs)
        self.place_piece = nnx.Linear(width, config.place_width, rngs=rngs)
        self.place_weights = nnx.Linear(width, config.place_width, rngs=rngs)

    def __call__(self, chain: Chain) -> Potentials:
        """Returns the scores of one problem."""
        features = features_of(chain)
        pieces = self._encoded(features)
        coefficients = self.coefficients(pieces)
        hidden = self.place_enter(features.places) + self.place_piece(pieces)[:, None]
        weights = self.place_weights(pieces)
        places = jnp.einsum("kwf,kf->kw", jax.nn.relu(hidden), weights)
        return _potentials(chain, coefficients, places)

    def _encoded(self, features: Features) -> Float[jax.Array, "stages features"]:
        pieces = self.entered(jax.nn.relu(self.enter(features.pieces)))
        is_piece = features.is_piece
        for block in self.blocks:
            mean = jnp.where(is_piece[:, None], pieces, 0.0).sum(axis=0) / is_piece.sum()
            pieces = block(pieces + self.pooled(mean)[None], is_piece, features.stage)
        return self.leave(pieces)


def new_network(config: NetworkConfig, seed: int) -> Network:
    """Returns a network with random weights."""
    return Network(config, nnx.Rngs(seed))


def _potentials(
    chain: Chain,
    coefficients: Float[jax.Array, "stages _"],
    places: Float[jax.Array, "stages window"],
) -> Potentials:
    """Returns scores from raw coefficients: positive prices, thresholds above the least limit."""
    single, hinges, gradients = jnp.split(coefficients, (4, 4 + 2 * _TIME_HINGES), axis=-1)
    price = jax.nn.softplus
    boundary = jnp.minimum(chain.windows[:, BOUNDARY], 1e4)
    hinge_at = 1.0 + 0.5 * jax.nn.softplus(hinges[:, _TIME_HINGES:] - 1.5)
    pieces = PiecePotentials(
        places=places - _STEEPEST * price(single[:, :1] - 3.0) * boundary,
        time_price=_STEEPEST * single[:, 1],
        idle_price=_STEEPEST * price(single[:, 2] - 3.0),
        hinge_price=_STEEPEST * price(hinges[:, :_TIME_HINGES]),
        hinge_at=hinge_at,
        gradient_price=_STEEPEST * price(gradients[:, :_GRADIENT_HINGES] - 3.0),
        gradient_at=jax.nn.softplus(gradients[:, _GRADIENT_HINGES:] + 0.5),
    )
    is_piece = jnp.arange(len(single)) < chain.num_pieces
    say = jnp.where(is_piece, single[:, 3], 0.0).sum() / chain.num_pieces
    # Never quite nothing, so that the logarithm of every step between ceilings exists.
    return Potentials(pieces, _LEAST_PRICE + _STEEPEST * price(say - 3.0))
