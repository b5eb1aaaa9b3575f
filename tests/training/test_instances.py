"""Synthetic problems: the same for a seed, legal, and as their families say."""

import numpy as np
import pytest

from apss_jax.training.instances import FAMILIES, draw_many
from apss_jax.training.placements import MIXES, draw_placements


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_as_the_family_says(family: str) -> None:
    """Stages and chunks are in range, and there are one and a half layers for a piece."""
    known = FAMILIES[family]
    for problem in draw_many(family, 20, seed=0):
        assert known.stages[0] <= problem.num_stages <= known.stages[1]
        assert problem.virtual_stages in known.virtual_stages
        assert known.is_original or problem.num_layers >= 1.5 * problem.num_pieces


def test_the_same_seed_gives_the_same_problems() -> None:
    """A problem depends on its family, seed and number, not on how many are drawn."""
    few, many = list(draw_many("simulated", 2, 5)), list(draw_many("simulated", 4, 5))
    np.testing.assert_array_equal(few[1].forward_s, many[1].forward_s)
    other = next(draw_many("simulated", 1, 6))
    assert (
        few[0].forward_s.shape != other.forward_s.shape
        or (few[0].forward_s != other.forward_s).any()
    )


def test_a_micro_batch_takes_one_unit_if_evenly_shared() -> None:
    """Without ends of their own speed, the ideal time of a stage is 1."""
    for problem in draw_many("closed_long", 20, seed=1):
        whole = (problem.forward_s + problem.backward_s).sum(axis=1)
        if np.ptp(problem.forward_s / whole[:, None], axis=0).max() < 1e-12:
            assert 1 / (1 / whole).sum() == pytest.approx(1.0)


def test_clusters_use_every_type_and_no_device_twice() -> None:
    """The given order keeps to the counts; drawing again gives the same."""
    first, again = (list(draw_placements(20, 3, stages=(4, 12))) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        used = np.bincount(one.given_order, minlength=one.instance.num_types)
        assert np.all(used <= one.instance.counts)
        np.testing.assert_array_equal(one.given_order, other.given_order)


def test_mixes_can_be_left_out() -> None:
    """Only the types of the mixes that are given are drawn: two of them here."""
    found = draw_placements(10, 0, stages=(4, 8), mixes=(MIXES[0],))
    speeds = {round(1e12 / each.instance.capacity_bytes.max()) for each in found}
    assert len(speeds) == 1
