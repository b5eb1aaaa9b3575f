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
from profiler.survey import Survey

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
    """Compares equal nodes by one all-reduce inside each, and the pairs of each first node."""
    for nodes in _kinds(survey):
        name = survey.intra_of_node[nodes[0]]
        if len(nodes) > 1:
            _compare(survey, nodes, name)
        _compare_pairs(survey, survey.nodes[nodes[0]])


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


def _compare(survey: Survey, nodes: Sequence[int], name: str) -> None:
    def rate(node: int) -> float:
        found = survey.measure("all_reduce", [survey.nodes[node]], link=name, ladder=CHECK)
        return rate_of(found) if found.samples else float("nan")

    rates = [rate(node) for node in nodes]
    for i in slow_among(rates):
        rates[i] = max(rates[i], rate(nodes[i]))  # it may have been disturbed
    for i in slow_among(rates):
        fraction = rates[i] / float(np.nanmax(rates))
        node = nodes[i]
        text = f"the link inside {survey.names[node]} reaches {fraction:.0%} of its like"
        survey.note(text)
        survey.intra_of_node[node] = f"{name}-of-{survey.names[node]}"
        survey.add_scaled(survey.intra_of_node[node], name, fraction, text)


def _compare_pairs(survey: Survey, devices: Numbers) -> None:
    pairs = list(combinations(devices, 2))[:MOST_PAIRS]
    if len(pairs) < 2:
        return
    rates = [survey.pair_rate(*pair) for pair in pairs]
    for i in slow_among(rates):
        rates[i] = max(rates[i], survey.pair_rate(*pairs[i]))
    for i in slow_among(rates):
        a, b = pairs[i]
        factor = float(np.nanmax(rates)) / rates[i]
        survey.note(f"devices {a} and {b} are {factor:.1f} times slower than the fastest pair")
