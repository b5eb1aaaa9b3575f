"""Decoding: probabilities add up, the likeliest is the likeliest, nothing that is illegal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chain_problems import SIZE, SMALL, all_ends, one_of, padded, small_params, small_problems
from flax import nnx

from apss_jax.partitioning.exact import solve_exact
from apss_jax.partitioning.instance import stage_sums
from apss_jax.partitioning.pipeline import PipelineInstance, fits
from apss_jax.policy.batched import (
    decoded,
    drawn_ends,
    log_likelihoods,
    most_likely_ends,
    scored_ways,
    structure_of,
)
from apss_jax.policy.chains import Chain, ceilings_of, chains_of
from apss_jax.policy.decode import (
    log_likelihood,
    most_likely,
    offsets_of,
    places_of,
    scores,
    ways_of,
)

Problems = tuple[list[PipelineInstance], Chain]


@pytest.fixture(scope="module", name="problems")
def _problems() -> Problems:
    found = small_problems(24)
    _, is_feasible = chains_of(found, is_simulated=False, size=SIZE)
    kept = [each for each, flag in zip(found, is_feasible, strict=True) if flag]
    return kept, chains_of(kept, is_simulated=False, size=SIZE)[0]


def _likelihoods(problems: Problems) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns every partition of each problem, and how likely it is."""
    instances, chains = problems
    found = []
    most = max(len(all_ends(i.num_pieces, i.num_layers)) for i in instances)
    for row, instance in enumerate(instances):
        ends = padded(all_ends(instance.num_pieces, instance.num_layers), SIZE[0])
        filled = np.pad(ends, ((0, most - len(ends)), (0, 0)), mode="edge")
        chain = jax.tree.map(lambda values, row=row: values[row : row + 1], chains)
        likelihood = log_likelihoods(SMALL, small_params(), chain, filled[None])[0]
        found.append((ends, np.asarray(likelihood)[: len(ends)]))
    return found


def test_probabilities_of_all_partitions_sum_to_one(problems: Problems) -> None:
    """Nothing is left for what is not a partition, and what does not fit has no probability."""
    for instance, (ends, likelihood) in zip(problems[0], _likelihoods(problems), strict=True):
        assert np.exp(likelihood).sum() == pytest.approx(1.0, abs=1e-4)
        cuts = ends[:, : instance.num_pieces - 1].astype(np.int64) - 1
        is_fit = np.array([fits(instance, row) for row in cuts])
        assert np.exp(likelihood[~is_fit]).sum() == 0.0


def test_the_most_likely_partition_is_found(problems: Problems) -> None:
    """What is decoded is as likely as the likeliest of all partitions."""
    found = np.asarray(most_likely_ends(SMALL, small_params(), problems[1]))
    for row, (ends, likelihood) in enumerate(_likelihoods(problems)):
        place = np.flatnonzero((ends == found[row]).all(axis=1)).item()
        assert likelihood[place] == pytest.approx(likelihood.max(), abs=1e-4)


def _slowest(instance: PipelineInstance, ends: np.ndarray) -> np.ndarray:
    """Returns what the slowest piece of each partition takes."""
    time_s = instance.forward_s + instance.backward_s
    cuts = ends[:, : instance.num_pieces - 1].astype(np.int64) - 1
    return np.array([stage_sums(time_s, each).max() for each in cuts])


def test_the_slowest_piece_costs_what_its_ceiling_says(problems: Problems) -> None:
    """Beside the sum over pieces, only the first ceiling above the slowest of them counts.

    Times are those of the problem in double precision, relative to the least that fits.
    """
    seen: set[int] = set()
    for row, (every, likely) in enumerate(_likelihoods(problems)):
        ends, likelihood = every[likely > -1e8], likely[likely > -1e8]
        slowest = _slowest(problems[0][row], ends)
        ceilings = ceilings_of(SIZE[2])
        ceiling = (slowest[:, None] / slowest.min() - 1 > ceilings[:-1]).sum(axis=1)
        chain = one_of(problems[1], row)
        potentials = nnx.merge(structure_of(SMALL), nnx.State(small_params()))(chain)
        assert potentials.slowest_price > 0
        links, places = ways_of(chain, potentials).links, places_of(chain, jnp.asarray(ends))
        start = np.pad(places[:, :-1], ((0, 0), (1, 0)))
        summed = jax.vmap(scores)(links, start.T, places.T).sum(axis=0)
        apart = likelihood - summed + potentials.slowest_price * ceilings[ceiling]
        assert np.ptp(apart) < 2e-3
        seen |= set(ceiling.tolist())
    assert seen == set(range(SIZE[2]))


def test_with_the_slowest_piece_alone_probabilities_are_exponentials(problems: Problems) -> None:
    """Where pieces score nothing, a partition has exp(-2 * its ceiling) of all that fit."""
    for row in range(6):
        instance, chain = problems[0][row], one_of(problems[1], row)
        network = nnx.merge(structure_of(SMALL), nnx.State(small_params()))
        nothing = jax.tree.map(jnp.zeros_like, network(chain))
        ways = ways_of(chain, nothing._replace(slowest_price=jnp.float32(2.0)))
        ends = padded(all_ends(instance.num_pieces, instance.num_layers), SIZE[0])
        ends = ends[
            [fits(instance, each[: instance.num_pieces - 1].astype(np.int64) - 1) for each in ends]
        ]
        slowest = _slowest(instance, ends)
        ceilings = ceilings_of(SIZE[2])
        ceiling = (slowest[:, None] / slowest.min() - 1 > ceilings[:-1]).sum(axis=1)
        expected = np.exp(-2.0 * ceilings[ceiling])
        found = np.exp(log_likelihood(ways, places_of(chain, jnp.asarray(ends))))
        np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-3)


def test_partitions_are_drawn_as_often_as_they_are_likely(problems: Problems) -> None:
    """Shares of 4,096 samples are the probabilities, within four standard deviations."""
    chain = jax.tree.map(lambda values: values[:1], problems[1])
    keys = jax.random.split(jax.random.key(2), 1)
    drawn = np.asarray(drawn_ends(SMALL, small_params(), chain, keys, 4096))[0]
    ends, likelihood = _likelihoods((problems[0][:1], chain))[0]
    share = (drawn[:, None] == ends[None]).all(axis=2).mean(axis=0)
    expected = np.exp(likelihood)
    assert share.sum() == pytest.approx(1.0)
    assert np.all(np.abs(share - expected) <= 4 * np.sqrt(expected / 4096) + 1e-3)


def test_padding_changes_nothing(problems: Problems) -> None:
    """Twice as many padded pieces give the same partitions."""
    small = most_likely_ends(SMALL, small_params(), problems[1])
    wide, _ = chains_of(problems[0], is_simulated=False, size=(2 * SIZE[0], *SIZE[1:]))
    large = most_likely_ends(SMALL, small_params(), wide)
    np.testing.assert_array_equal(small, np.asarray(large)[:, : SIZE[0]])


def test_many_at_once_and_one_by_one(problems: Problems) -> None:
    """What is drawn for a problem depends on its place and the seed, not on what follows it."""
    whole = decoded(SMALL, small_params(), problems[1], samples=5, seed=3)
    first = jax.tree.map(lambda values: values[:2], problems[1])
    np.testing.assert_array_equal(
        decoded(SMALL, small_params(), first, samples=5, seed=3), whole[:2]
    )
    assert (decoded(SMALL, small_params(), problems[1], samples=5, seed=4) != whole).any()


def test_a_problem_without_a_partition_is_told() -> None:
    """Exactly those problems are feasible that the exact solver finds a partition of."""
    found = small_problems(60, seed=9)
    _, is_feasible = chains_of(found, is_simulated=False, size=SIZE)
    has_solution = [solve_exact(each.closed_form()) is not None for each in found]
    assert is_feasible.tolist() == has_solution
    assert not all(has_solution)


@pytest.mark.slow
def test_nothing_infeasible_in_ten_thousand_tight_problems() -> None:
    """Whatever the weights, what is decoded fits the memory wherever something does."""
    checked = 0
    for seed in range(100, 130):
        found = small_problems(400, seed=seed)
        chains, is_feasible = chains_of(found, is_simulated=False, size=SIZE)
        ends = decoded(SMALL, small_params(), chains, samples=3, seed=seed)
        for row in np.flatnonzero(is_feasible).tolist():
            cuts = ends[row, :, : found[row].num_pieces - 1].astype(np.int64) - 1
            assert all(fits(found[row], sample) for sample in cuts)
            checked += 1
    assert checked >= 10_000


def test_a_problem_alone_and_among_others(problems: Problems) -> None:
    """A problem without a leading axis is cut as it is in a batch."""
    many = np.asarray(most_likely_ends(SMALL, small_params(), problems[1]))
    for row in (0, 5):
        chain = one_of(problems[1], row)
        places = most_likely(scored_ways(SMALL, small_params(), chain))
        np.testing.assert_array_equal(offsets_of(chain, places), many[row])
