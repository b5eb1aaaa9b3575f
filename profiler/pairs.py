"""Which node, pair of nodes or network card is slower than the others, from rates of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float

SLOW_FRACTION: Final = 0.6  # of what its like reaches; disturbed samples stay above it
SAME_FRACTION: Final = 0.75  # networks this close count as one kind
USUAL_QUANTILE: Final = 0.75  # what most nodes reach, one lucky rate left out of many
MOST_PAIRS: Final = 60  # beyond, each node is measured with its next two only

Rates = Float[np.ndarray, "nodes nodes"]
Pair = tuple[int, int]


@dataclass(frozen=True)
class Judgement:
    """What the rates between nodes say."""

    node_rates: Float[np.ndarray, " nodes"]  # what each node reaches with its best partner
    slow_nodes: tuple[int, ...]
    slow_pairs: tuple[Pair, ...]  # slower than both of their nodes are with others
    classes: tuple[tuple[int, ...], ...]  # nodes with networks of one kind, the fastest first


def pairs_to_measure(num_nodes: int) -> list[Pair]:
    """Returns pairs of nodes, sender first, in both directions.

    All pairs of few nodes; of many, each node with the next two, so that a slow node shows with
    four partners and a slow pair does not make its nodes look slow.
    """
    pairs = [(i, j) for i in range(num_nodes) for j in range(i + 1, num_nodes)]
    if len(pairs) > MOST_PAIRS:
        ring = [(i, (i + step) % num_nodes) for step in (1, 2) for i in range(num_nodes)]
        pairs = sorted({(min(pair), max(pair)) for pair in ring})
    return [one for i, j in pairs for one in ((i, j), (j, i))]


def judge_pairs(rates: Rates) -> Judgement:
    """Returns what is slow; `rates` is [sender, receiver], NaN where nothing was measured.

    A node is worth what it reaches with its best partner, in its worse direction. A node is slow
    when that is below a fraction of what most nodes reach; a pair, when it is below a fraction of
    what both its nodes reach with others. With two nodes there is nothing to compare with.
    """
    if np.isnan(rates).all():
        nodes = tuple(range(len(rates)))
        return Judgement(np.full(len(rates), np.nan), (), (), (nodes,))
    both_ways = np.fmin(rates, rates.T)
    node_rates = np.fmin(_best(rates), _best(rates.T))
    usual = np.quantile(node_rates[~np.isnan(node_rates)], USUAL_QUANTILE, method="higher")
    slow_nodes = np.flatnonzero(node_rates < SLOW_FRACTION * usual)
    expected = np.minimum(node_rates[:, None], node_rates[None, :])
    slow_pairs = np.argwhere(np.triu(both_ways < SLOW_FRACTION * expected, 1))
    return Judgement(
        node_rates=node_rates,
        slow_nodes=tuple(slow_nodes.tolist()),
        slow_pairs=tuple((int(i), int(j)) for i, j in slow_pairs),
        classes=_classes(node_rates),
    )


def slow_lanes(rates: Float[np.ndarray, "nodes ranks"]) -> list[Pair]:
    """Returns (node, place in the node) of devices whose network is slower than their node's.

    `rates` is what each device reached alone over its own network card.
    """
    usual = np.nanmedian(rates, axis=1, keepdims=True)
    return [(int(i), int(k)) for i, k in np.argwhere(rates < SLOW_FRACTION * usual)]


def slow_among(rates: Sequence[float]) -> list[int]:
    """Returns which of several rates are below a fraction of the usual one."""
    known = np.asarray(rates, float)
    if np.isnan(known).all():
        return []
    usual = np.nanquantile(known, USUAL_QUANTILE, method="higher")
    return [int(i) for i in np.flatnonzero(known < SLOW_FRACTION * usual)]


def _best(rates: Rates) -> Float[np.ndarray, " nodes"]:
    filled = np.where(np.isnan(rates), -np.inf, rates).max(axis=1)
    return np.where(np.isinf(filled), np.nan, filled)


def _classes(node_rates: Float[np.ndarray, " nodes"]) -> tuple[tuple[int, ...], ...]:
    """Returns nodes grouped by rate; nodes that were not measured stand with the fastest."""
    known = np.where(np.isnan(node_rates), np.nanmax(node_rates), node_rates)
    classes: list[list[int]] = []
    first_rate = np.inf
    for node in np.argsort(-known, kind="stable").tolist():
        if not classes or known[node] < SAME_FRACTION * first_rate:
            classes.append([])
            first_rate = known[node]
        classes[-1].append(node)
    return tuple(tuple(sorted(nodes)) for nodes in classes)
