"""The slow node, pair or network card is found from the rates of pairs."""

import numpy as np
import pytest

from profiler.pairs import judge_pairs, pairs_to_measure, slow_among, slow_lanes


def _rates(num_nodes: int, rate: float = 50.0) -> np.ndarray:
    rates = np.full((num_nodes, num_nodes), rate)
    np.fill_diagonal(rates, np.nan)
    return rates


def _both(rates: np.ndarray, i: int, j: int, rate: float) -> None:
    rates[i, j] = rates[j, i] = rate


def test_equal_nodes_have_nothing_slow() -> None:
    """Rates that differ by a tenth name nobody."""
    rates = _rates(4)
    rates[0, 1] *= 0.9
    found = judge_pairs(rates)
    assert (found.slow_nodes, found.slow_pairs) == ((), ())
    assert found.classes == ((0, 1, 2, 3),)


def test_the_slow_node_of_three_is_named() -> None:
    """Both pairs of node 2 are slow, the pair of the others is not: node 2 it is, no pair."""
    rates = _rates(3)
    for other in (0, 1):
        _both(rates, other, 2, 12.5)
    found = judge_pairs(rates)
    assert (found.slow_nodes, found.slow_pairs) == ((2,), ())
    assert found.classes == ((0, 1), (2,))


def test_a_node_slow_in_one_direction_is_named() -> None:
    """A node that sends slowly and receives fast is a slow node."""
    rates = _rates(3)
    rates[1, [0, 2]] = 12.5
    assert judge_pairs(rates).slow_nodes == (1,)


def test_a_slow_pair_is_not_blamed_on_its_nodes() -> None:
    """Nodes that reach others fast are not slow; what lies between the two is."""
    rates = _rates(4)
    _both(rates, 1, 3, 10.0)
    found = judge_pairs(rates)
    assert (found.slow_nodes, found.slow_pairs) == ((), ((1, 3),))


def test_two_racks_have_slow_pairs_between_them() -> None:
    """Where a thin trunk joins two racks, each pair across is slow and no node is."""
    rates = _rates(4)
    for i, j in ((0, 2), (0, 3), (1, 2), (1, 3)):
        _both(rates, i, j, 12.5)
    found = judge_pairs(rates)
    assert found.slow_pairs == ((0, 2), (0, 3), (1, 2), (1, 3))
    assert found.slow_nodes == ()


def test_two_nodes_cannot_be_compared() -> None:
    """One pair alone is neither fast nor slow."""
    found = judge_pairs(_rates(2))
    assert (found.slow_nodes, found.slow_pairs, found.classes) == ((), (), ((0, 1),))


def test_unmeasured_pairs_name_nobody() -> None:
    """A pair without a rate is not slow, nor is a node without any."""
    rates = _rates(3)
    rates[2, :] = rates[:, 2] = np.nan
    found = judge_pairs(rates)
    assert (found.slow_nodes, found.slow_pairs) == ((), ())
    assert found.classes == ((0, 1, 2),)


def test_the_slow_card_of_a_node_is_named() -> None:
    """Device 3 of node 1 reaches a quarter of what the node's other devices reach."""
    rates = np.full((2, 4), 25.0)
    rates[1, 3] = 6.0
    assert slow_lanes(rates) == [(1, 3)]


def test_slow_among_equals() -> None:
    """One of five rates is low; where none is known none is."""
    assert slow_among([10.0, 10.0, 9.0, 3.0, 10.0]) == [3]
    assert slow_among([np.nan, np.nan]) == []


@pytest.mark.parametrize(("num_nodes", "pairs"), [(2, 2), (3, 6), (11, 110), (40, 160)])
def test_many_nodes_are_measured_with_few_partners(num_nodes: int, pairs: int) -> None:
    """All pairs of few nodes in both directions; of many, each node with four others."""
    chosen = pairs_to_measure(num_nodes)
    assert len(chosen) == len(set(chosen)) == pairs
    assert all((j, i) in chosen for i, j in chosen)
    assert {i for i, _ in chosen} == set(range(num_nodes))
