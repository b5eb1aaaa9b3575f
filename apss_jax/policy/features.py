"""What the network sees of one problem: figures of each piece, and of each place it may end at."""

from __future__ import annotations

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from apss_jax.policy.chains import Chain

# Order of `Chain.windows`, as the compiled preparation writes it.
TIME_END, TIME_START, GRADIENT_END, GRADIENT_START, BOUNDARY = range(5)
_NUM_TIME_LEVELS: Final = 5

PIECE_FEATURES: Final = 71
PLACE_FEATURES: Final = 14

_TIME_AROUND: Final = tuple(range(-4, 5))  # places around the centre whose loads a piece sees
_COSTS_AROUND: Final = (-2, -1, 0, 1, 2)
_LARGEST: Final = 8.0


class Features(NamedTuple):
    """What the network reads of one problem."""

    pieces: Float[jax.Array, "stages features"]
    places: Float[jax.Array, "stages window features"]
    is_piece: Bool[jax.Array, "stages"]
    stage: Int[jax.Array, "stages"]


def features_of(chain: Chain) -> Features:
    """Returns the features of one problem; padded pieces are zero."""
    index = jnp.arange(chain.time.shape[-1])
    is_piece = index < chain.num_pieces
    columns = [*_sizes(chain, index), *_speeds(chain, is_piece), *_reaches(chain)]
    columns += [*_surroundings(chain), *_reference(chain, is_piece)]
    wide = [jnp.broadcast_to(column, index.shape) for column in columns]
    pieces = jnp.clip(jnp.stack(wide, axis=-1), -_LARGEST, _LARGEST)
    places = jnp.clip(jnp.stack(_places(chain), axis=-1), -_LARGEST, _LARGEST)
    keep = is_piece[:, None]
    return Features(
        pieces=jnp.where(keep, pieces, 0.0),
        places=jnp.where(keep[..., None], places, 0.0),
        is_piece=is_piece,
        stage=index % chain.num_stages,
    )


def positions_of(chain: Chain) -> Int[jax.Array, "stages window"]:
    """Returns the offset of each place of each window."""
    return chain.origin[:, None] + jnp.arange(chain.until.shape[-1])[None]


def _sizes(chain: Chain, index: Int[jax.Array, "stages"]) -> list[jax.Array]:
    """Returns where a piece stands, and the numbers of pieces, micro-batches and layers."""
    pieces, layers, stages, micro_batches = (
        count.astype(jnp.float32)
        for count in (
            *(chain.num_pieces, chain.num_layers),
            *(chain.num_stages, chain.num_micro_batches),
        )
    )
    left = jnp.maximum(pieces - index, 1.0)
    stage = index % chain.num_stages
    return [
        index / pieces,
        1.0 / left,
        1.0 / (index + 1.0),
        stage / stages,
        jnp.log(pieces) / 2,
        jnp.log(pieces / stages),
        (pieces > stages).astype(jnp.float32),
        jnp.log(micro_batches) / 3,
        jnp.log(micro_batches / stages),
        1.0 / micro_batches,
        pieces / layers,
        jnp.log(layers) / 3,
        chain.is_simulated.astype(jnp.float32),
        chain.held / stages,
        chain.forward_fraction,
        chain.blocking_fraction,
    ]


def _speeds(chain: Chain, is_piece: Bool[jax.Array, "stages"]) -> list[jax.Array]:
    """Returns how fast pieces are, how much they hold, and how tight the limits are."""
    count = chain.num_pieces.astype(jnp.float32)
    time = jnp.maximum(chain.time, 1e-6)
    mean_time = jnp.where(is_piece, time, 0.0).sum() / count
    even_time = 1.0 / jnp.where(is_piece, 1.0 / time, 0.0).sum()
    gradient = chain.gradient / count
    mean_gradient = jnp.where(is_piece, gradient, 0.0).sum() / count
    rounds = chain.num_micro_batches + count
    return [
        jnp.log(time / mean_time),
        time / count,
        10 * (1 - even_time),
        10 * jnp.log(chain.memory_slowdown),
        jnp.log1p(gradient),
        gradient / (mean_gradient + 1e-6),
        jnp.log1p(chain.gradient_limit),
        chain.gradient_limit / rounds,
        jnp.log((chain.gradient_limit + 1e-3) / (mean_gradient + 1e-3)),
        chain.memory / count,
        (chain.memory > 0).astype(jnp.float32),
    ]


def _reaches(chain: Chain) -> list[jax.Array]:
    """Returns how far from the centre each piece can end within each level of limits."""
    width = (chain.reach[:, 1] - chain.reach[:, 0]) / 8
    has_gradient = chain.gradient_limit > 0
    seen = jnp.arange(chain.reach.shape[0]) < _NUM_TIME_LEVELS
    keep = (seen | has_gradient)[:, None]
    rows = [chain.reach_times[:, 0], chain.reach_times[:, 1], width]
    return [row for values in rows for row in jnp.where(keep, values, 0.0)]


def _center(chain: Chain) -> Int[jax.Array, "stages"]:
    """Returns the place of each window that its reach is centred on."""
    middle = (chain.reach[1, 0] + chain.reach[1, 1] + 1) // 2
    return jnp.clip(middle - chain.origin, 0, chain.until.shape[-1] - 1)


def _at(values: Float[jax.Array, "stages window"], place: jax.Array) -> jax.Array:
    place = jnp.clip(place, 0, values.shape[-1] - 1)
    return jnp.take_along_axis(values, place[:, None], axis=1)[:, 0]


def _surroundings(chain: Chain) -> list[jax.Array]:
    """Returns loads and boundary costs around the centre, and of the pieces beside."""
    center, windows = _center(chain), chain.windows
    ends, boundary = windows[:, TIME_END], jnp.log1p(windows[:, BOUNDARY])
    middle = _at(ends, center)
    loads = [_at(ends, center + away) - middle for away in _TIME_AROUND if away]
    costs = [_at(boundary, center + away) for away in _COSTS_AROUND]
    low, mean = boundary.min(axis=1), boundary.mean(axis=1)
    before = jnp.concatenate([jnp.zeros_like(mean[:1]), mean[:-1]])
    work = windows[:, GRADIENT_END]
    gradients = [_at(work, center + away) - _at(work, center) for away in (-2, 2)]
    return [*loads, *costs, low, mean, before, *gradients]


def _reference(chain: Chain, is_piece: Bool[jax.Array, "stages"]) -> list[jax.Array]:
    """Returns what the given solution does with each piece; zero where none is given."""
    is_given = (chain.reference >= 0) & is_piece
    place = chain.reference - chain.origin
    inside = is_given & (place >= 0) & (place < chain.until.shape[-1])
    before = jnp.concatenate([jnp.zeros_like(place[:1]), place[:-1]])
    ends, work = chain.windows[:, TIME_END], chain.windows[:, GRADIENT_END]
    load = _at(ends, place) - _at(chain.windows[:, TIME_START], before)
    gradient = _at(work, place) - _at(chain.windows[:, GRADIENT_START], before)
    columns = [
        load,
        gradient,
        jnp.log1p(_at(chain.windows[:, BOUNDARY], place)),
        _at(ends, place) - _at(ends, _center(chain)),
    ]
    return [is_given.astype(jnp.float32), *(jnp.where(inside, column, 0.0) for column in columns)]


def _places(chain: Chain) -> list[jax.Array]:
    """Returns the features of each place: distances from reaches and reference, and its costs."""
    positions = positions_of(chain)
    center = _center(chain)
    ends, work = chain.windows[:, TIME_END], chain.windows[:, GRADIENT_END]
    boundary = chain.windows[:, BOUNDARY]
    away = ends - _at(ends, center)[:, None]
    columns = [away, jnp.abs(away), work - _at(work, center)[:, None]]
    least = boundary.min(axis=1, keepdims=True)
    columns += [jnp.log1p(boundary), jnp.log1p(boundary - least)]
    for level in (0, 1, 2, 3, _NUM_TIME_LEVELS, _NUM_TIME_LEVELS + 1):
        low, high = chain.reach[level, 0, :, None], chain.reach[level, 1, :, None]
        outside = jnp.maximum(positions - high, 0) + jnp.maximum(low - positions, 0)
        is_known = level < _NUM_TIME_LEVELS or chain.gradient_limit > 0
        columns.append(jnp.where(is_known, jnp.clip(outside, 0, 6) / 2, 0.0))
    moved = jnp.clip(positions - chain.reference[:, None], -6, 6) / 2
    is_given = (chain.reference >= 0)[:, None]
    for values in (moved, jnp.abs(moved), moved == 0):
        columns.append(jnp.where(is_given, values.astype(jnp.float32), 0.0))
    return columns
