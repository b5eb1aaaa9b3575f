"""The one place of `jit` and `vmap` in the network."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Final

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from apss_jax.cost.batched import QUICKLY
from apss_jax.cost.traced import KeptProgram, digest_of
from apss_jax.policy.beam import best_orders
from apss_jax.policy.chains import Chain
from apss_jax.policy.decode import (
    Ways,
    drawn,
    log_likelihood,
    most_likely,
    offsets_of,
    places_of,
    values_to_go,
    ways_of,
)
from apss_jax.policy.network import NetworkConfig, new_network
from apss_jax.policy.orders import OrderConfig, OrderNetwork, likelihood
from apss_jax.policy.placements import PlacementInput

Params = Any
"""The weights of a network as a pytree."""


BATCHES: Final = (16, 64, 256)
"""Numbers of problems that programs are compiled for."""

DRAWN_AT_ONCE: Final = 16
"""Partitions of a problem that one program draws."""


@lru_cache(maxsize=8)
def structure_of(config: NetworkConfig) -> Any:
    """Returns what a network is apart from its weights."""
    return nnx.split(nnx.eval_shape(lambda: new_network(config, 0)))[0]


def new_params(config: NetworkConfig, seed: int) -> Params:
    """Returns random weights."""
    return nnx.to_pure_dict(nnx.state(new_network(config, seed)))


def param_shapes(config: NetworkConfig) -> Params:
    """Returns the shapes of a network's weights."""
    return nnx.to_pure_dict(nnx.eval_shape(lambda: nnx.state(new_network(config, 0))))


def scored_ways(config: NetworkConfig, params: Params, chain: Chain) -> Ways:
    """Returns one problem's partitions with their scores."""
    network = nnx.merge(structure_of(config), nnx.State(params))
    return ways_of(chain, network(chain))


@partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def most_likely_ends(
    config: NetworkConfig, params: Params, chains: Chain
) -> Int[jax.Array, "batch stages"]:
    """Returns where each piece ends in the most likely partition of each problem."""

    def one(chain: Chain) -> jax.Array:
        return offsets_of(chain, most_likely(scored_ways(config, params, chain)))

    return jax.vmap(one)(chains)


@partial(jax.jit, static_argnums=(0, 4), compiler_options=QUICKLY)
def drawn_ends(
    config: NetworkConfig, params: Params, chains: Chain, keys: jax.Array, count: int
) -> Int[jax.Array, "batch samples stages"]:
    """Returns where pieces end in partitions that are drawn, with one key for each problem."""

    def one(chain: Chain, key: jax.Array) -> jax.Array:
        own = scored_ways(config, params, chain)
        places = drawn(own, values_to_go(own, is_best=False), key, count)
        return offsets_of(chain, places)

    return jax.vmap(one)(chains, keys)


def _proposals(
    config: NetworkConfig, params: Params, chains: Chain, keys: jax.Array, count: int
) -> Int[jax.Array, "batch samples stages"]:
    """Returns the most likely partition and `count` that are drawn, from one encoding."""

    def one(chain: Chain, key: jax.Array) -> jax.Array:
        own = scored_ways(config, params, chain)
        more = drawn(own, values_to_go(own, is_best=False), key, count)
        places = jax.numpy.concatenate([most_likely(own)[None], more])
        return offsets_of(chain, places)

    return jax.vmap(one)(chains, keys)


proposals: Final = jax.jit(_proposals, static_argnums=(0, 4), compiler_options=QUICKLY)


@partial(jax.jit, static_argnums=0, compiler_options=QUICKLY)
def log_likelihoods(
    config: NetworkConfig,
    params: Params,
    chains: Chain,
    ends: Int[jax.Array, "batch samples stages"],
) -> Float[jax.Array, "batch samples"]:
    """Returns how likely given partitions are; far below -1e8 outside the windows."""

    def one(chain: Chain, ends: jax.Array) -> jax.Array:
        return log_likelihood(scored_ways(config, params, chain), places_of(chain, ends))

    return jax.vmap(one)(chains, ends)


@lru_cache(maxsize=8)
def _order_structure(config: OrderConfig) -> Any:
    return nnx.split(nnx.eval_shape(lambda: OrderNetwork(config, nnx.Rngs(0))))[0]


def new_order_params(config: OrderConfig, seed: int) -> Params:
    """Returns random weights of an order head."""
    return nnx.to_pure_dict(nnx.state(OrderNetwork(config, nnx.Rngs(seed))))


def order_param_shapes(config: OrderConfig) -> Params:
    """Returns the shapes of an order head's weights."""
    head = nnx.eval_shape(lambda: nnx.state(OrderNetwork(config, nnx.Rngs(0))))
    return nnx.to_pure_dict(head)


def order_log_likelihood(
    config: OrderConfig,
    params: Params,
    problem: PlacementInput,
    orders: Int[jax.Array, "samples stages"],
) -> Float[jax.Array, "samples"]:
    """Returns how likely orders of one problem are; far below -1e8 where one is not allowed."""
    network = nnx.merge(_order_structure(config), nnx.State(params))
    return jax.vmap(lambda order: likelihood(network, problem, order))(orders)


@partial(jax.jit, static_argnums=(0, 3), compiler_options=QUICKLY)
def likely_orders(
    config: OrderConfig,
    params: Params,
    inputs: PlacementInput,
    count: int,
    key: jax.Array | None = None,
) -> tuple[Int[jax.Array, "batch samples stages"], Float[jax.Array, "batch samples"]]:
    """Returns `count` different orders of each problem, and their log-likelihoods.

    Without a key those that a beam finds the likeliest; with one, drawn without replacement. Those
    far below -1e8 are none: there are no more.
    """
    network = nnx.merge(_order_structure(config), nnx.State(params))
    if key is None:
        return jax.vmap(lambda problem: best_orders(network, problem, count))(inputs)

    def drawn(problem: PlacementInput, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        shape = (problem.furthest.shape[0], count, problem.counts.shape[0])
        return best_orders(network, problem, count, jax.random.gumbel(key, shape))

    return jax.vmap(drawn)(inputs, jax.random.split(key, len(inputs.num_stages)))


def decoded(
    config: NetworkConfig, params: Params, chains: Chain, *, samples: int, seed: int
) -> Int[np.ndarray, "batch samples stages"]:
    """Returns the most likely partition of each problem, then `samples - 1` drawn ones.

    Problems go through in parts of few sizes, so that few programs are compiled; what is drawn for
    a problem depends on the seed and its place alone.
    """
    count = len(chains.num_layers)
    size = next((size for size in BATCHES if count <= size), BATCHES[-1])
    parts = [
        _decoded_part(config, params, chains, start, size, samples, seed)
        for start in range(0, count, size)
    ]
    return np.concatenate(parts)[:count]


def _decoded_part(
    config: NetworkConfig,
    params: Params,
    chains: Chain,
    start: int,
    size: int,
    samples: int,
    seed: int,
) -> Int[np.ndarray, "batch samples stages"]:
    rows = np.minimum(np.arange(start, start + size), len(chains.num_layers) - 1)
    part = jax.tree.map(lambda values: values[rows], chains)
    if samples == 1:
        return np.asarray(most_likely_ends(config, params, part))[:, None]
    leaves, tree = jax.tree.flatten(params)
    first = _first_proposals(config, tree)
    found = [np.asarray(first(leaves, part, np.array([seed, 0, start], np.int32)))]
    for more in range(DRAWN_AT_ONCE, samples - 1, DRAWN_AT_ONCE):
        keys = _keys(seed, more, start, size)
        found.append(np.asarray(drawn_ends(config, params, part, keys, DRAWN_AT_ONCE)))
    return np.concatenate(found, axis=1)[:, :samples]


@lru_cache(maxsize=8)
def _first_proposals(config: NetworkConfig, tree: Any) -> KeptProgram:
    """Returns the proposals of many problems, of weights, chains and what keys are made of.

    Most searches ask for nothing else, and tracing it takes longer than anything that they do.
    """

    def run(
        leaves: list[jax.Array], chains: Chain, origin: Int[jax.Array, "_"]
    ) -> Int[jax.Array, "batch samples stages"]:
        params = jax.tree.unflatten(tree, leaves)
        keys = _keys(*origin, len(chains.num_layers))
        return _proposals(config, params, chains, keys, DRAWN_AT_ONCE)

    run.__name__ = f"proposals-{digest_of((config, tree))}"
    return KeptProgram(jax.jit(run, compiler_options=QUICKLY), QUICKLY, (Chain,))


@partial(jax.jit, static_argnums=3)
def _keys(
    seed: int | Int[jax.Array, ""],
    more: int | Int[jax.Array, ""],
    start: int | Int[jax.Array, ""],
    count: int,
) -> jax.Array:
    """Returns a key for each problem, by its place among all."""
    key = jax.random.fold_in(jax.random.key(seed), more)
    return jax.vmap(lambda place: jax.random.fold_in(key, place))(start + jax.numpy.arange(count))
