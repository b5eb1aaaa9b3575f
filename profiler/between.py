"""Networks between nodes: kinds of node, slow pairs, and what devices that send at once share."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from profiler.link_figures import Evidence, rate_of
from profiler.pairs import (
    SLOW_FRACTION,
    Judgement,
    Pair,
    judge_pairs,
    pairs_to_measure,
    slow_lanes,
)
from profiler.sampling import QUICK, Numbers
from profiler.survey import Survey, megabits


def measure_between(survey: Survey) -> None:
    """Measures all pairs of nodes, then the network of each kind of node and each slow pair."""
    if len(survey.nodes) < 2:
        name = survey.add_assumed("one node has no network to measure")
        survey.network_of_node[0] = name
        return
    judgement = _judged(survey)
    for kind, nodes in enumerate(judgement.classes):
        name = "network" if kind == 0 else f"network-{kind + 1}"
        partner = judgement.classes[0][0]
        _measure_network(survey, name, _typical(nodes, partner, judgement), nodes)
        survey.network_of_node.update(dict.fromkeys(nodes, name))
    for i, j in judgement.slow_pairs:
        _measure_bridge(survey, i, j)
    _note_slow(survey, judgement)


def compare_cards(survey: Survey) -> None:
    """Measures each device's own way to another node, and names those slower than their node's."""
    if len(survey.nodes) < 2 or min(len(node) for node in survey.nodes) < 2:
        return
    lanes = min(len(node) for node in survey.nodes)
    rates = np.array(
        [
            [survey.pair_rate(node[k], _next(survey, i)[k]) for k in range(lanes)]
            for i, node in enumerate(survey.nodes)
        ]
    )
    if np.isnan(rates).all(axis=1).any():
        return
    for i, k in slow_lanes(rates):
        again = survey.pair_rate(survey.nodes[i][k], _next(survey, i)[k])
        rates[i, k] = np.fmax(rates[i, k], again)
    for i, k in slow_lanes(rates):
        device, usual = survey.nodes[i][k], float(np.nanmedian(rates[i]))
        survey.note(
            f"the network of device {device} ({survey.names[i]}) reaches {megabits(rates[i, k])}, "
            f"its neighbours {megabits(usual)}"
        )


def measure_more_between(survey: Survey) -> None:
    """Measures both directions at once, the remaining collectives, and one over everything."""
    if len(survey.nodes) < 2:
        return
    name = survey.network_of_node[0]
    heads = tuple(node[0] for node in survey.nodes)
    _measure_all_pairs_at_once(survey)
    survey.measure("exchange", [heads[:2]], link=name)
    everything = tuple(device for node in survey.nodes for device in node)
    survey.measure("all_reduce", [everything], link=name)
    for operation in ("all_gather", "reduce_scatter", "all_to_all"):
        survey.measure(operation, [heads], link=name)


def _judged(survey: Survey) -> Judgement:
    """Returns what is slow, after what looked slow was measured again: it may be disturbed."""
    rates = np.full((len(survey.nodes), len(survey.nodes)), np.nan)
    pairs = pairs_to_measure(len(survey.nodes))
    for i, j in pairs:
        rates[i, j] = _pair_rate(survey, i, j)
    first = judge_pairs(rates)
    for i, j in pairs:
        is_slow = (min(i, j), max(i, j)) in first.slow_pairs
        if is_slow or {i, j} & set(first.slow_nodes):
            rates[i, j] = np.fmax(rates[i, j], _pair_rate(survey, i, j))
    return judge_pairs(rates)


def _pair_rate(survey: Survey, sender: int, receiver: int) -> float:
    return survey.pair_rate(survey.nodes[sender][0], survey.nodes[receiver][0])


def _typical(nodes: Sequence[int], partner: int, judgement: Judgement) -> tuple[int, int]:
    """Returns two nodes of a kind that no slow pair joins; a lone node and one of the fastest."""
    joined = [(i, j) for i in nodes for j in nodes if i < j and (i, j) not in judgement.slow_pairs]
    if joined:
        return joined[0]
    if len(nodes) > 1:
        return nodes[0], nodes[1]
    return nodes[0], partner


def _measure_network(
    survey: Survey, name: str, pair: tuple[int, int], nodes: Sequence[int]
) -> None:
    """Measures one device's transfers and collectives, then those of several devices at once."""
    a, b = (survey.nodes[node] for node in pair)
    transfer = survey.measure("send", [(a[0], b[0])], link=name, essential=True)
    rings = _lanes([survey.nodes[n] for n in nodes]) if len(nodes) > 2 else _lanes([a, b])
    collective = survey.measure("all_reduce", rings[:1], link=name, essential=True)
    transfer_lanes = collective_lanes = None
    lanes = _lanes([a, b])
    if len(lanes) > 1:
        transfer_lanes = survey.measure("send", lanes, link=name, essential=True)
    if len(rings) > 1:
        collective_lanes = survey.measure("all_reduce", rings, link=name, essential=True)
    survey.add_link(name, Evidence(transfer, collective, transfer_lanes, collective_lanes))
    known = [one for one in (transfer_lanes, transfer) if one is not None and one.samples]
    survey.lane_rates[name] = rate_of(known[0])


def _measure_all_pairs_at_once(survey: Survey) -> None:
    """Lets every device of every second node send to the next node, and names a shared switch."""
    name = survey.network_of_node[0]
    alike = [node for node, network in survey.network_of_node.items() if network == name]
    pairs = _apart(sorted(alike), survey.bridges.keys())
    if len(pairs) < 2:
        return
    lanes = [lane for i, j in pairs for lane in _lanes([survey.nodes[i], survey.nodes[j]])]
    at_once = survey.measure("send", lanes, link=name)
    if at_once.samples and rate_of(at_once) < SLOW_FRACTION * survey.lane_rates[name]:
        survey.note(
            f"{len(pairs)} pairs of nodes that send at once reach {megabits(rate_of(at_once))} per "
            f"device, one pair alone {megabits(survey.lane_rates[name])}: a switch is shared"
        )


def _apart(nodes: Sequence[int], slow: Collection[Pair]) -> list[Pair]:
    """Returns pairs of nodes of which none is in two; those that a slow pair joins are left out."""
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    return [pair for pair in pairs if pair not in slow]


def _measure_bridge(survey: Survey, i: int, j: int) -> None:
    name = f"bridge-{i}-{j}"
    a, b = survey.nodes[i], survey.nodes[j]
    transfer = survey.measure("send", [(a[0], b[0])], link=name, essential=True)
    lanes = _lanes([a, b])
    at_once = survey.measure("send", lanes, link=name, ladder=QUICK) if len(lanes) > 1 else None
    collective = survey.measure("all_reduce", [(a[0], b[0])], link=name, ladder=QUICK)
    survey.add_link(name, Evidence(transfer, collective, at_once))
    survey.bridges[i, j] = name


def _note_slow(survey: Survey, judgement: Judgement) -> None:
    if not judgement.slow_nodes and not judgement.slow_pairs:
        return
    fastest = max(link.bytes_per_s for name, link in survey.links.items() if "network" in name)
    for node in judgement.slow_nodes:
        rate = survey.links[survey.network_of_node[node]].bytes_per_s
        survey.note(
            f"the network of {survey.names[node]} reaches {megabits(rate)}, "
            f"that of the fastest node {megabits(fastest)}"
        )
    for i, j in judgement.slow_pairs:
        rate = survey.links[survey.bridges[i, j]].bytes_per_s
        survey.note(
            f"{survey.names[i]} and {survey.names[j]} reach {megabits(rate)} between them, "
            f"with other nodes up to {megabits(fastest)}"
        )


def _lanes(nodes: Sequence[Numbers]) -> list[Numbers]:
    """Returns a group for each place that all of the nodes have: the first devices, and so on."""
    return list(zip(*nodes, strict=False))


def _next(survey: Survey, node: int) -> Numbers:
    return survey.nodes[(node + 1) % len(survey.nodes)]
