"""Training objectives over scored sets of partitions: what the weights are moved by.

All take the log-likelihood of every partition of a set and its *gap*, cost / best of the set - 1,
with inf where a partition is not legal or lies outside the windows. The best objective ranks a
whole set by the sizes of its gaps; the others are there to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from apss_jax.policy.decode import NEVER

_ANCHOR = 0.2
_NO_SPREAD = 3e-3  # gaps spread less than this do not tell partitions apart


class ScoredSet(NamedTuple):
    """Partitions of one problem: first those that the network drew, then elites and others."""

    log_likelihood: Float[jax.Array, "samples"]
    gap: Float[jax.Array, "samples"]
    num_cuts: Int[jax.Array, ""]
    softness: Float[jax.Array, ""]
    """The gap at which a partition counts 1/e of the best one."""

    @staticmethod
    def of(
        likelihood: Float[jax.Array, "samples"],
        gap: Float[jax.Array, "samples"],
        num_cuts: Int[jax.Array, ""],
        softness: Float[jax.Array, ""],
    ) -> ScoredSet:
        """Returns a set in which what the network can never draw has no gap that is known."""
        is_possible = likelihood > 0.5 * NEVER
        return ScoredSet(
            log_likelihood=jnp.where(is_possible, likelihood, 0.0),
            gap=jnp.where(is_possible, gap, jnp.inf),
            num_cuts=num_cuts,
            softness=softness,
        )


Loss = Callable[[ScoredSet, int], Float[jax.Array, ""]]
"""What is minimized for one problem; the number says how many of the set the network drew."""


def imitation(scored: ScoredSet, _: int) -> Float[jax.Array, ""]:
    """Returns the negative log-likelihood of the best partition of the set, for each cut."""
    best = jnp.argmin(scored.gap)
    known = jnp.isfinite(scored.gap[best])
    likelihood = jnp.where(known, scored.log_likelihood[best], 0.0)
    return -likelihood / jnp.maximum(scored.num_cuts, 1)


def info_nce(scored: ScoredSet, _: int) -> Float[jax.Array, ""]:
    """Returns the cross entropy between soft ranks by gap and likelihoods within the set.

    Targets are softmax(-gap / softness): van den Oord et al. 2018 (arXiv 1807.03748), equation 4,
    with many positives weighed by the sizes of their gaps. The likelihood of the best partition is
    anchored, or all could fall together.
    """
    is_known = jnp.isfinite(scored.gap)
    target = jax.nn.softmax(jnp.where(is_known, -scored.gap / scored.softness, -jnp.inf))
    within = jax.nn.log_softmax(jnp.where(is_known, scored.log_likelihood, -1e9))
    ranked = -jnp.where(target > 0, target * within, 0.0).sum()
    usable = is_known.any()
    return jnp.where(usable, 0.2 * ranked + _ANCHOR * imitation(scored, 0), 0.0)


def reinforce(scored: ScoredSet, drawn: int) -> Float[jax.Array, ""]:
    """Returns the policy-gradient loss with the mean of the set as baseline (POMO).

    Kwon et al. 2020 (arXiv 2010.16011), equation 3; advantages are divided by their spread.
    """
    is_known = jnp.isfinite(scored.gap[:drawn])
    count = jnp.maximum(is_known.sum(), 1)
    gap = jnp.where(is_known, scored.gap[:drawn], 0.0)
    above = jnp.where(is_known, gap - gap.sum() / count, 0.0)
    spread = jnp.sqrt((above**2).sum() / count) + _NO_SPREAD
    pushed = (above / spread * jnp.where(is_known, scored.log_likelihood[:drawn], 0.0)).sum()
    return pushed / count / jnp.maximum(scored.num_cuts, 1)


def contrastive(scored: ScoredSet, drawn: int) -> Float[jax.Array, ""]:
    """Returns `info_nce` and `reinforce` together."""
    return info_nce(scored, drawn) + 0.5 * reinforce(scored, drawn)


def sign(scored: ScoredSet, drawn: int) -> Float[jax.Array, ""]:
    """Returns the loss of the original paper: signs of the differences within the first three.

    The three are the likeliest partition of the network and two samples; of each pair the better
    one gains what the other loses, however much better it is.
    """
    three = min(3, drawn)
    gap = jnp.where(jnp.isfinite(scored.gap[:three]), scored.gap[:three], 1e3)
    worse = jnp.sign(gap[:, None] - gap[None]).sum(axis=1)
    likelihood = jnp.where(gap < 1e3, scored.log_likelihood[:three], 0.0)
    return (worse * likelihood).sum() / jnp.maximum(scored.num_cuts, 1)


LOSSES: Final[dict[str, Loss]] = {
    "contrastive": contrastive,
    "info_nce": info_nce,
    "reinforce": reinforce,
    "sign": sign,
    "imitation": imitation,
}
"""What can be trained by; `imitation` needs sets that hold a solver's answer."""
