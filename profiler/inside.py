"""Links inside nodes: their figures, nodes that differ from their like, pairs that differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from apss_jax.schema.link_measurements import Operation
from profiler.link_figures import Evidence, rate_of
from profiler.pairs import slow_among
from profiler.sampling import Ladder, Numbers
from profiler.survey import Survey, megabits

MOST_PAIRS: Final = 28  # all pairs of eight devices
CHECK: Final = Ladder((2**24,), float("inf"), 0.4)  # one size, to compare equal nodes by
OTHERS: Final[tuple[Operation, ...]] = ("all_gather", "reduce_scatter", "all_to_all")


def measure_inside(survey: Survey) -> None:
    """Measures the fast link of the first node of each kind."""
    for kind, nodes in enumerate(_kinds(survey)):
        devices = survey.nodes[nodes[0]]
        name = "intra" if kind == 0 else f"intra-{kind + 1}"
        collective = survey.measure("all_reduce", [devices], link=name, essential=True)
        transfer = survey.measure("send", [devices[:2]], link=name, essential=True)
        survey.add_link(name, Evidence(transfer, collective))
        survey.intra_of_node.update(dict.fromkeys(nodes, name))


def compare_nodes(survey: Survey) -> None:
    """Compares equal nodes by one all-reduce inside each, then pairs in the first and the slow."""
    for nodes in _kinds(survey):
        name = survey.intra_of_node[nodes[0]]
        slow = _compare(survey, nodes, name) if len(nodes) > 1 else []
        for node in dict.fromkeys([nodes[0], *slow]):
            _compare_pairs(survey, node)


def compare_other_pairs(survey: Survey) -> None:
    """Compares the pairs of nodes whose all-reduce is like that of the first."""
    for nodes in _kinds(survey):
        usual = survey.intra_of_node[nodes[0]]
        for node in nodes[1:]:
            if survey.intra_of_node[node] == usual:
                _compare_pairs(survey, node)


def measure_more_inside(survey: Survey) -> None:
    """Measures the remaining operations, and groups of half a node's size."""
    for nodes in _kinds(survey):
        devices, name = survey.nodes[nodes[0]], survey.intra_of_node[nodes[0]]
        survey.measure("exchange", [devices[:2]], link=name)
        for operation in OTHERS:
            survey.measure(operation, [devices], link=name)
        for size in _smaller_groups(len(devices)):
            survey.measure("all_reduce", [devices[:size]], link=name)
            halves = [devices[i : i + size] for i in range(0, len(devices) - size + 1, size)]
            survey.measure("all_reduce", halves, link=name)


def _smaller_groups(size: int) -> list[int]:
    return [size // part for part in (2, 4) if size % part == 0 and size // part > 1]


def _kinds(survey: Survey) -> list[list[int]]:
    """Returns nodes of several devices, those of one type and number together."""
    kinds: dict[tuple[str, int], list[int]] = {}
    for node, devices in enumerate(survey.nodes):
        if len(devices) > 1:
            model = str(survey.sampler.context.devices[devices[0]].device_kind)
            kinds.setdefault((model, len(devices)), []).append(node)
    return list(kinds.values())


def _compare(survey: Survey, nodes: Sequence[int], name: str) -> list[int]:
    """Returns the nodes that reach less than their like; each gets a link of its own."""

    def rate(node: int) -> float:
        found = survey.measure("all_reduce", [survey.nodes[node]], link=name, ladder=CHECK)
        return rate_of(found) if found.samples else float("nan")

    rates = [rate(node) for node in nodes]
    for i in slow_among(rates):
        rates[i] = max(rates[i], rate(nodes[i]))  # it may have been disturbed
    slow = slow_among(rates)
    for i in slow:
        fraction = rates[i] / float(np.nanmax(rates))
        node = nodes[i]
        text = f"the link inside {survey.names[node]} reaches {fraction:.0%} of its like"
        survey.note(text)
        survey.intra_of_node[node] = f"{name}-of-{survey.names[node]}"
        survey.add_scaled(survey.intra_of_node[node], name, fraction, text)
    return [nodes[i] for i in slow]


def _compare_pairs(survey: Survey, node: int) -> None:
    pairs = _pairs(survey.nodes[node])
    if len(pairs) < 2:
        return
    rates = [survey.pair_rate(*pair) for pair in pairs]
    for i in slow_among(rates):
        rates[i] = max(rates[i], survey.pair_rate(*pairs[i]))
    for i in slow_among(rates):
        a, b = pairs[i]
        factor = float(np.nanmax(rates)) / rates[i]
        survey.note(
            f"devices {a} and {b} ({survey.names[node]}) are {factor:.1f} times slower than the "
            f"fastest pair of their node: {megabits(rates[i])}"
        )


def _pairs(devices: Numbers) -> list[tuple[int, int]]:
    """Returns all pairs of few devices; of many, each device with the next two."""
    pairs = list(combinations(devices, 2))
    if len(pairs) <= MOST_PAIRS:
        return pairs
    count = len(devices)
    return [(devices[i], devices[(i + step) % count]) for step in (1, 2) for i in range(count)]
