"""Partitions from scores: the most likely one, samples, and the likelihood of any.

A partition's score is a sum over pieces of where each starts and ends, less a price of its slowest
piece that rises in steps, at *ceilings*. Its probability is exp(score) over the sum for all
partitions within the windows. A pass from the last piece to the first tells what all ways to go on
from a start are worth, for each ceiling that no piece may be above. Sums below ceilings, weighed,
are the sum of all; drawing a ceiling by its part of that sum and then pieces in order below it
gives each partition its probability.

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
from apss_jax.policy.network import PiecePotentials, Potentials

NEVER: Final = -1e9
"""The score of what is not allowed: finite, so that its gradient is zero and not NaN."""


class Links(NamedTuple):
    """Pieces in the first axis, ready to be followed from one to the next."""

    potentials: PiecePotentials
    ends: Float[jax.Array, "stages 2 window"]
    """Time and gradient work up to each place where the piece may end."""
    starts: Float[jax.Array, "stages 2 window"]
    end_at: Int[jax.Array, "stages window"]
    """The offset of each of those places."""
    start_at: Int[jax.Array, "stages window"]
    until: Int[jax.Array, "stages window"]
    may_end: Bool[jax.Array, "stages window"]
    is_piece: Bool[jax.Array, "stages"]


class Ways(NamedTuple):
    """All partitions of one problem: scores of pieces, and what the slowest piece costs."""

    links: Links
    limits: Float[jax.Array, "ceilings"]
    """The most that a piece takes below each ceiling; the last one is no limit."""
    prices: Float[jax.Array, "ceilings"]
    """What is taken off the score of a partition whose slowest piece lies below each, ascending."""
    log_shares: Float[jax.Array, "ceilings"]
    """Logarithm of how much more each price leaves of a probability than the next one."""


def ways_of(chain: Chain, potentials: Potentials) -> Ways:
    """Returns the partitions of one problem with their scores.

    A partition counts below its own ceiling and all higher ones; with the shares as weights these
    add up to exp(-price) of its own, so that sums below ceilings are all that is ever needed.
    """
    prices = potentials.slowest_price * chain.ceilings
    steps = jnp.diff(prices)
    log_shares = -prices + jnp.append(jnp.log(-jnp.expm1(-steps)), 0.0)
    limits = jnp.append(1.0 + chain.ceilings[:-1], jnp.inf)
    return Ways(_links_of(chain, potentials.pieces), limits, prices, log_shares)


def _links_of(chain: Chain, potentials: PiecePotentials) -> Links:
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
    load = loads(link, start, end)
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


def loads(
    link: Links, start: Int[jax.Array, "..."], end: Int[jax.Array, "..."]
) -> Float[jax.Array, "..."]:
    """Returns what one piece takes between some places; nothing if it is padding."""
    return jnp.where(link.is_piece, link.ends[0][end] - link.starts[0][start], 0.0)


def values_to_go(ways: Ways, *, is_best: bool) -> Float[jax.Array, "offsets ceilings window"]:
    """Returns what the pieces from each one on are worth, by where it starts.

    The best way to go on, or the logarithm of the sum over all ways, without a piece above each
    ceiling.
    """
    window, count = ways.links.until.shape[-1], len(ways.limits)
    place = jnp.arange(window)
    finished = jnp.broadcast_to(jnp.where(place == 0, 0.0, NEVER), (count, window))
    reduced = _greatest if is_best else _log_sums

    def earlier(after: jax.Array, link: Links) -> tuple[jax.Array, jax.Array]:
        score = scores(link, place[None, :], place[:, None])
        load = loads(link, place[None, :], place[:, None])
        before = jnp.maximum(reduced(score, load, ways.limits, after), NEVER)
        return before, before

    _, values = lax.scan(jax.checkpoint(earlier), finished, ways.links, reverse=True)
    return jnp.concatenate([values, finished[None]])


def _greatest(
    score: Float[jax.Array, "window window"],
    load: Float[jax.Array, "window window"],
    limits: Float[jax.Array, "ceilings"],
    after: Float[jax.Array, "ceilings window"],
) -> Float[jax.Array, "ceilings window"]:
    """Returns the best sum of score and what comes after, by ceiling and start; ends are rows."""
    best = jnp.full(after.shape, NEVER)
    # One end after the other: as a reduction the compiler works on one number at a time.
    for end in range(after.shape[-1]):
        is_below = load[end][None, :] <= limits[:, None]
        ways = jnp.where(is_below, score[end][None, :] + after[:, end, None], NEVER)
        best = jnp.maximum(best, ways)
    return best


def _log_sums(
    score: Float[jax.Array, "window window"],
    load: Float[jax.Array, "window window"],
    limits: Float[jax.Array, "ceilings"],
    after: Float[jax.Array, "ceilings window"],
) -> Float[jax.Array, "ceilings window"]:
    """Returns the logarithm of the sum of all ways, by ceiling and start; ends are rows."""
    is_below = load[:, None, :] <= limits[None, :, None]
    ways = jnp.where(is_below, score[:, None, :] + after.T[:, :, None], NEVER)
    return jax.nn.logsumexp(ways, axis=0)


def most_likely(ways: Ways) -> Int[jax.Array, "stages"]:
    """Returns the place of each piece's end in the most likely partition."""
    values = values_to_go(ways, is_best=True)
    # Below a higher ceiling than it needs a partition counts for less, so the best of all is meant.
    ceiling = jnp.argmax(values[0, :, 0] - ways.prices)
    limit = ways.limits[ceiling]

    def later(start: jax.Array, row: tuple[Links, jax.Array]) -> tuple[jax.Array, jax.Array]:
        link, after = row
        end = jnp.argmax(_onward(link, start, limit) + after)
        return end, end

    return lax.scan(later, jnp.zeros((), int), (ways.links, values[1:, ceiling]))[1]


def _onward(
    link: Links, start: Int[jax.Array, "*_"], limit: Float[jax.Array, "*_"]
) -> Float[jax.Array, "*_ window"]:
    """Returns the scores of all ends from a start, within a limit."""
    place = jnp.arange(link.until.shape[-1]).reshape((1,) * start.ndim + (-1,))
    start, limit = start[..., None], limit[..., None]
    is_below = loads(link, start, place) <= limit
    return jnp.where(is_below, scores(link, start, place), NEVER)


def drawn(
    ways: Ways,
    values: Float[jax.Array, "offsets ceilings window"],
    key: jax.Array,
    count: int,
) -> Int[jax.Array, "samples stages"]:
    """Returns independent partitions, each with its probability."""
    window = ways.links.until.shape[-1]
    own, key = jax.random.split(key)
    ceiling = jax.random.categorical(own, ways.log_shares + values[0, :, 0], shape=(count,))
    limit = ways.limits[ceiling]

    def later(
        start: jax.Array, row: tuple[Links, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        link, after, key = row
        logits = _onward(link, start, limit) + after[ceiling]
        end = jnp.argmax(logits + jax.random.gumbel(key, (count, window)), axis=1)
        return end, end

    keys = jax.random.split(key, ways.links.is_piece.shape[0])
    first = jnp.zeros(count, int)
    return lax.scan(later, first, (ways.links, values[1:], keys))[1].T


def log_likelihood(
    ways: Ways, places: Int[jax.Array, "samples stages"]
) -> Float[jax.Array, "samples"]:
    """Returns the logarithm of the probability of each partition."""
    totals = values_to_go(ways, is_best=False)[0, :, 0]
    start = jnp.concatenate([jnp.zeros_like(places[:, :1]), places[:, :-1]], axis=1)
    each = jax.vmap(scores)(ways.links, start.T, places.T).sum(axis=0)
    slowest = jax.vmap(loads)(ways.links, start.T, places.T).max(axis=0)
    ceiling = (slowest[:, None] > ways.limits[None]).sum(axis=1)
    return each - ways.prices[ceiling] - jax.nn.logsumexp(ways.log_shares + totals)


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
