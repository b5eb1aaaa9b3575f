"""Small problems and networks for tests of the policy."""

from functools import lru_cache
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apss_jax.partitioning.pipeline import PipelineInstance
from apss_jax.policy.batched import new_params
from apss_jax.policy.chains import Chain
from apss_jax.policy.network import NetworkConfig
from apss_jax.training.instances import FAMILIES, Family, draw

SMALL = NetworkConfig(width=8, heads=2, blocks=1, place_width=4)
SIZE = (4, 12, 6)


@lru_cache(maxsize=2)
def small_params(seed: int = 0) -> Any:
    """Returns random weights of a network that compiles quickly."""
    return new_params(SMALL, seed)


def small_problems(count: int, *, family: str = "tight", seed: int = 0) -> list[PipelineInstance]:
    """Returns problems of at most 4 pieces and 10 layers."""
    known = FAMILIES[family]
    small = Family(layers=(6, 10), stages=(3, 4), tight_memory=known.tight_memory, link=known.link)
    return [draw(small, np.random.default_rng((seed, number))) for number in range(count)]


def one_of(chains: Chain, row: int) -> Chain:
    """Returns one problem of several, without a leading axis."""
    return jax.tree.map(lambda values: jnp.asarray(values[row]), chains)


def all_ends(pieces: int, layers: int) -> np.ndarray:
    """Returns where pieces end in every partition without an empty piece."""
    rows = [[*cuts, layers] for cuts in combinations(range(1, layers), pieces - 1)]
    return np.array(rows, np.int32)


def padded(ends: np.ndarray, pieces: int) -> np.ndarray:
    """Returns ends with those of padding after the last layer."""
    width = ((0, 0), (0, pieces - ends.shape[1]))
    return np.pad(ends, width, mode="edge").astype(np.int32)
