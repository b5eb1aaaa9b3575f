"""The policy against costing every legal layout: it never drops the best."""

import pytest
from policy_problems import QUESTIONS, Question

from apss_jax.planning.clock import Clock
from apss_jax.planning.inputs import gather_inputs
from apss_jax.planning.search import search_inputs
from apss_jax.schema.plan import SearchResult

SAME_FRACTION = 1e-5  # float32 of two groupings of the same candidates


def answer(question: Question, *, use_policy: bool) -> SearchResult:
    """Returns the answer with the policy, or with everything costed."""
    inputs = gather_inputs(
        question.model,
        question.cluster,
        global_batch=question.global_batch,
        seq_len=question.seq_len,
        stack=question.stack,
    )
    return search_inputs(inputs, "exact", question.pins, 1, Clock(), use_policy=use_policy)


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.model} on {q.cluster}")
def test_the_policy_never_drops_the_best(question: Question) -> None:
    """The first plan is as fast as the best of all, after far fewer were costed."""
    kept, every = (answer(question, use_policy=on) for on in (True, False))
    assert set(every.search.dropped) <= {"no_partition_fits"}
    best_s = every.plans[0].cost.step_time_s
    assert kept.plans[0].cost.step_time_s <= best_s * (1 + SAME_FRACTION)
    assert sum(kept.search.dropped.values()) > every.search.legal / 3
