"""Measures the links of a run: inside nodes, between them, of each pair, alone and all at once."""

from __future__ import annotations

from profiler.between import compare_cards, measure_between, measure_more_between
from profiler.context import MeasuredLinks, MeasuringContext
from profiler.inside import compare_nodes, measure_inside, measure_more_inside
from profiler.survey import Survey


def measure_links(context: MeasuringContext) -> MeasuredLinks:
    """Returns what links reach; every process of the run calls it at the same time.

    The figures that planning needs come first, then what tells nodes, pairs and cards apart, then
    what is only shown. Steps are left out when the time is up, the first figures excepted.
    """
    return surveyed(Survey.of(context))


def surveyed(survey: Survey) -> MeasuredLinks:
    """Returns what a survey finds."""
    measure_inside(survey)
    measure_between(survey)
    compare_nodes(survey)
    compare_cards(survey)
    measure_more_inside(survey)
    measure_more_between(survey)
    nodes = range(len(survey.nodes))
    # A node of one device has no link inside; what stands in its place is never used.
    network = tuple(survey.network_of_node[node] for node in nodes)
    return MeasuredLinks(
        links=survey.links,
        intra_link_of_node=tuple(survey.intra_of_node.get(n, network[n]) for n in nodes),
        network_of_node=network,
        measurements=tuple(survey.measurements),
        pair_rates=tuple(survey.pair_rates),
        bridge_of_nodes=survey.bridges,
        notes=tuple(survey.notes),
    )
