"""Measures the links of a run: inside nodes, between them, of each pair, alone and all at once."""

from __future__ import annotations

from profiler.between import compare_cards, measure_between, measure_more_between
from profiler.context import LinkStart, MeasuredLinks, MeasuringContext
from profiler.inside import (
    compare_nodes,
    compare_other_pairs,
    measure_inside,
    measure_more_inside,
)
from profiler.survey import Survey


def measure_links(context: MeasuringContext, start: LinkStart | None = None) -> MeasuredLinks:
    """Returns what links reach; every process of the run calls it at the same time.

    The figures that planning needs come first, then what tells nodes, pairs and cards apart, then
    what is only shown. Steps are left out when the time is up, the first figures excepted.
    """
    return surveyed(Survey.of(context, start))


def surveyed(survey: Survey) -> MeasuredLinks:
    """Returns what a survey finds."""
    measure_inside(survey)
    measure_between(survey)
    compare_nodes(survey)
    compare_cards(survey)
    compare_other_pairs(survey)
    measure_more_inside(survey)
    measure_more_between(survey)
    return survey.found(is_done=True)
