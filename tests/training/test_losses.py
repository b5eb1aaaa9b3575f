"""Training objectives on sets of partitions that are small enough to work out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apss_jax.training.losses import (
    LOSSES,
    ScoredSet,
    contrastive,
    imitation,
    info_nce,
    reinforce,
    sign,
)


def _set(likelihood: list[float], gap: list[float], cuts: int = 2) -> ScoredSet:
    return ScoredSet(
        jnp.array(likelihood), jnp.array(gap), jnp.array(cuts), jnp.array(0.01, jnp.float32)
    )


def _push(name: str, scored: ScoredSet, drawn: int) -> np.ndarray:
    """Returns how much each likelihood is raised by one step of unit size."""

    def of(likelihood: jax.Array) -> jax.Array:
        return LOSSES[name](scored._replace(log_likelihood=likelihood), drawn)

    return -np.asarray(jax.grad(of)(scored.log_likelihood))


def test_imitation_takes_the_best() -> None:
    """The loss is minus the best one's log-likelihood, for each of two cuts: 3 / 2."""
    assert imitation(_set([-1.0, -3.0], [0.5, 0.0]), 0) == pytest.approx(1.5)


def test_info_nce_by_hand() -> None:
    """Two equally likely partitions of the same cost: log 2 in fifths, and a fifth of 1 / 2."""
    loss = info_nce(_set([-1.0, -1.0], [0.0, 0.0]), 2)
    assert loss == pytest.approx(0.2 * np.log(2.0) + 0.2 * 1.0 / 2)


def test_the_original_loss_by_hand() -> None:
    """Of three, the best beats two and the worst loses to two, however small the differences."""
    pushed = _push("sign", _set([-1.0, -1.0, -1.0], [0.0, 1e-6, 9.0]), 3)
    np.testing.assert_allclose(pushed, [1.0, 0.0, -1.0])


def test_sizes_of_gaps_matter_to_info_nce_alone() -> None:
    """A partition that is nearly as good is raised too, one that is far off is lowered."""
    pushed = _push("info_nce", _set([-1.0, -1.0, -1.0], [0.0, 1e-4, 0.5]), 3)
    assert pushed[0] > pushed[1] > 0 > pushed[2]
    near = _push("sign", _set([-1.0, -1.0, -1.0], [0.0, 1e-4, 0.5]), 3)
    assert near[1] == 0


def test_reinforce_compares_with_the_mean_of_what_was_drawn() -> None:
    """Below the mean gap is raised, above is lowered; what was not drawn has no part."""
    pushed = _push("reinforce", _set([-1.0, -1.0, -1.0], [0.0, 0.2, 0.0]), 2)
    assert pushed[0] > 0 > pushed[1]
    assert pushed[0] == pytest.approx(-pushed[1])
    assert pushed[2] == 0


def test_the_contrastive_loss_is_half_a_policy_gradient_more_than_info_nce() -> None:
    """One partition twice as likely as another that is half a softness worse; one cut.

    Targets are 1 and exp(-1 / 2) over their sum, the likelihoods are 2/3 and 1/3 of theirs. The
    first lies 0.0025 below the mean gap of both and the second above, their spread is 0.0025, and
    differences count relative to that and 0.003.
    """
    loss = contrastive(_set([np.log(0.5), np.log(0.25)], [0.0, 0.005], cuts=1), 2)
    first = 1 / (1 + np.exp(-0.5))
    ranked = -first * np.log(2 / 3) - (1 - first) * np.log(1 / 3)
    pushed = 0.0025 / (0.0025 + 0.003) * (np.log(0.25) - np.log(0.5)) / 2
    assert loss == pytest.approx(0.2 * ranked + 0.2 * np.log(2) + 0.5 * pushed, rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_not_legal_has_no_part(name: str) -> None:
    """A partition with an infinite gap moves nothing, nor does a set without any other."""
    mixed = _push(name, _set([-1.0, -9.0, -2.0], [0.0, np.inf, 0.1]), 3)
    assert np.isfinite(mixed).all()
    assert mixed[1] == 0
    alone = _set([-1.0, -1.0], [np.inf, np.inf])
    assert np.isfinite(LOSSES[name](alone, 2))
    np.testing.assert_array_equal(_push(name, alone, 2), 0.0)


def test_one_partition_alone_cannot_be_ranked() -> None:
    """Without alternatives the policy gradient is zero."""
    assert reinforce(_set([-1.0], [0.0]), 1) == 0
    assert sign(_set([-1.0], [0.0]), 1) == 0
