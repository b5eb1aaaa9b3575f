"""Partitions from scores: the most likely one, samples, and the likelihood of any.

A partition's score is a sum over pieces of where each starts and ends, so its probability,
exp(score) / sum of exp(score) over all partitions within the windows, follows from a pass from the
last piece to the first: what all ways to go on from a start are worth. Drawing pieces in order with
these values is exact: the product of the steps' probabilities is the partition's.

Nothing that memory forbids has a place in it. Windows hold at least one partition that fits, so
one is found wherever there is one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from apss_jax.policy.chains import Chain
from apss_jax.policy.features import (
    GRADIENT_END,
    GRADIENT_START,
    TIME_END,
    TIME_START,
    positions_of,
)
from apss_jax.policy.network import Potentials

NEVER: Final = -1e9
"""The score of what is not allowed: finite, so that its gradient is zero and not NaN."""


class Links(NamedTuple):
    """Pieces in the first axis, ready to be followed from one to the next."""

    potentials: Potentials
    ends: Float[jax.Array, "stages 2 window"]
    """Time and gradient work up to each place where the piece may end."""
    starts: Float[jax.Array, "stages 2 window"]
    end_at: Int[jax.Array, "stages window"]
    """The offset of each of those places."""
    start_at: Int[jax.Array, "stages window"]
    until: Int[jax.Array, "stages window"]
    may_end: Bool[jax.Array, "stages window"]
    is_piece: Bool[jax.Array, "stages"]


def links_of(chain: Chain, potentials: Potentials) -> Links:
    """Returns the pieces of one problem with their scores."""
    count, window = chain.until.shape
    index, place = jnp.arange(count)[:, None], jnp.arange(window)[None]
    end_at = positions_of(chain)
    is_first_place = jnp.broadcast_to(place == 0, end_at.shape)
    is_last = index == chain.num_pieces - 1
    latest = chain.num_layers - (chain.num_pieces - 1 - index)
    may_end = jnp.where(is_last, is_first_place, (end_at > index) & (end_at <= latest))
    is_piece = jnp.arange(count) < chain.num_pieces
    start_at = jnp.concatenate([jnp.zeros_like(end_at[:1]), end_at[:-1]])
    return Links(
        potentials=potentials,
        ends=chain.windows[:, jnp.array([TIME_END, GRADIENT_END])],
        starts=chain.windows[:, jnp.array([TIME_START, GRADIENT_START])],
        end_at=end_at,
        start_at=start_at,
        until=chain.until,
        may_end=jnp.where(is_piece[:, None], may_end, is_first_place),
        is_piece=is_piece,
    )


def scores(
    link: Links,
    start: Int[jax.Array, "..."],
    end: Int[jax.Array, "..."],
) -> Float[jax.Array, "..."]:
    """Returns the score of one piece that starts and ends at some places of its windows."""
    potentials = link.potentials
    load = link.ends[0][end] - link.starts[0][start]
    work = link.ends[1][end] - link.starts[1][start]
    score = potentials.places[end] + potentials.time_price * load
    score -= potentials.idle_price * jnp.maximum(1.0 - load, 0.0)
    for price, limit in zip(potentials.hinge_price, potentials.hinge_at, strict=True):
        score -= price * jnp.maximum(load - limit, 0.0)
    for price, limit in zip(potentials.gradient_price, potentials.gradient_at, strict=True):
        score -= price * jnp.clip(work - limit, 0.0, 8.0)
    at, last = link.end_at[end], link.until[start]
    is_allowed = link.may_end[end] & (at > link.start_at[start]) & (at <= last)
    is_allowed &= (start >= 0) & (end >= 0)
    # Padded pieces hand their start on.
    is_padding = (start == 0) & (end == 0)
    allowed = jnp.where(link.is_piece, is_allowed, is_padding)
    return jnp.where(allowed, jnp.where(link.is_piece, score, 0.0), NEVER)


def all_scores(link: Links) -> Float[jax.Array, "window window"]:
    """Returns the scores of one piece for each start and each end."""
    place = jnp.arange(link.until.shape[-1])
    return scores(link, place[:, None], place[None, :])


def values_to_go(links: Links, *, is_best: bool) -> Float[jax.Array, "offsets window"]:
    """Returns what the pieces from each one on are worth, by where it starts.

    The best way to go on, or the logarithm of the sum over all ways.
    """
    window = links.until.shape[-1]
    finished = jnp.where(jnp.arange(window) == 0, 0.0, NEVER)

    def earlier(after: jax.Array, link: Links) -> tuple[jax.Array, jax.Array]:
        ways = all_scores(link) + after[None, :]
        before = ways.max(axis=1) if is_best else jax.nn.logsumexp(ways, axis=1)
        before = jnp.maximum(before, NEVER)
        return before, before

    _, values = lax.scan(jax.checkpoint(earlier), finished, links, reverse=True)
    return jnp.concatenate([values, finished[None]])


def most_likely(links: Links) -> Int[jax.Array, "stages"]:
    """Returns the place of each piece's end in the most likely partition."""
    values = values_to_go(links, is_best=True)

    def later(start: jax.Array, row: tuple[Links, jax.Array]) -> tuple[jax.Array, jax.Array]:
        link, after = row
        place = jnp.arange(after.shape[-1])
        end = jnp.argmax(scores(link, start, place) + after)
        return end, end

    return lax.scan(later, jnp.zeros((), int), (links, values[1:]))[1]


def drawn(
    links: Links,
    values: Float[jax.Array, "offsets window"],
    key: jax.Array,
    count: int,
) -> Int[jax.Array, "samples stages"]:
    """Returns independent partitions, each with its probability."""
    window = links.until.shape[-1]
    place = jnp.arange(window)[None]

    def later(
        start: jax.Array, row: tuple[Links, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        link, after, key = row
        logits = scores(link, start[:, None], place) + after[None]
        end = jnp.argmax(logits + jax.random.gumbel(key, (count, window)), axis=1)
        return end, end

    keys = jax.random.split(key, links.is_piece.shape[0])
    first = jnp.zeros(count, int)
    return lax.scan(later, first, (links, values[1:], keys))[1].T


def log_likelihood(
    links: Links, log_total: Float[jax.Array, ""], places: Int[jax.Array, "samples stages"]
) -> Float[jax.Array, "samples"]:
    """Returns the logarithm of the probability of each partition, given that of all together."""
    start = jnp.concatenate([jnp.zeros_like(places[:, :1]), places[:, :-1]], axis=1)
    each = jax.vmap(scores)(links, start.T, places.T)
    return each.sum(axis=0) - log_total


def step_log_likelihood(
    links: Links,
    values: Float[jax.Array, "offsets window"],
    places: Int[jax.Array, "samples stages"],
) -> Float[jax.Array, "samples"]:
    """Returns the same as `log_likelihood`, multiplied up step by step as pieces are drawn."""
    start = jnp.concatenate([jnp.zeros_like(places[:, :1]), places[:, :-1]], axis=1)
    place = jnp.arange(links.until.shape[-1])[None]

    def step(link: Links, after: jax.Array, start: jax.Array, end: jax.Array) -> jax.Array:
        steps = jax.nn.log_softmax(scores(link, start[:, None], place) + after[None], axis=1)
        return jnp.take_along_axis(steps, end[:, None], axis=1)[:, 0]

    return jax.vmap(step)(links, values[1:], start.T, places.T).sum(axis=0)


def offsets_of(chain: Chain, places: Int[jax.Array, "*_ stages"]) -> Int[jax.Array, "*_ stages"]:
    """Returns the offset where each piece ends; padded pieces end after the last layer."""
    is_inner = jnp.arange(places.shape[-1]) < chain.num_pieces - 1
    ends = places + _aligned(chain.origin, places)
    return jnp.where(_aligned(is_inner, places), ends, chain.num_layers)


def places_of(chain: Chain, ends: Int[jax.Array, "*_ stages"]) -> Int[jax.Array, "*_ stages"]:
    """Returns the places of some ends in their windows, outside them one that scores `NEVER`."""
    is_inner = jnp.arange(ends.shape[-1]) < chain.num_pieces - 1
    places = ends - _aligned(chain.origin, ends)
    is_inside = (places >= 0) & (places < chain.until.shape[-1])
    return jnp.where(_aligned(is_inner, ends), jnp.where(is_inside, places, -1), 0)


def _aligned(values: jax.Array, like: jax.Array) -> jax.Array:
    """Returns the values with as many axes as another array, the new ones first."""
    return values.reshape((1,) * (like.ndim - 1) + values.shape)
