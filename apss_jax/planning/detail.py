"""A search result with what a report draws beside the plans."""

from __future__ import annotations

from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.neighbours import neighbours_of
from apss_jax.planning.op_times import timeline_of
from apss_jax.planning.sensitivity import sensitivity_of
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.model import Model
from apss_jax.schema.plan import SearchResult
from apss_jax.schema.stack import Stack


def with_detail(
    model: Model | str,
    cluster: ClusterProfile | str,
    result: SearchResult,
    stack: Stack | str | None = None,
) -> SearchResult:
    """Returns the result with neighbours, sensitivity and the first plan's timeline.

    Model, cluster and stack are those of the search; a result without plans comes back as it is.
    """
    if not result.plans:
        return result
    first = result.plans[0]
    assert first.global_batch is not None  # every plan of a search says it
    inputs = gather_inputs(
        model,
        cluster,
        global_batch=first.global_batch,
        seq_len=first.seq_len,
        precision=first.precision,
        stack=stack,
    )
    return result.model_copy(
        update={
            "neighbours": neighbours_of(inputs, result.plans),
            "sensitivity": sensitivity_of(inputs, result.plans),
            "timeline": timeline_of(inputs, first),
        }
    )
