"""Stages that wait for each other's messages all come to their end, in every schedule."""

from collections.abc import Sequence

import pytest

from apss_jax.cost.schedule import build_table
from apss_jax.trials.actions import Action, Kind, actions_of

# What the other stage does at the same moment.
PARTNER = {
    Kind.SEND_NEXT: (1, Kind.RECEIVE_PREVIOUS),
    Kind.RECEIVE_NEXT: (1, Kind.SEND_PREVIOUS),
    Kind.EXCHANGE_NEXT: (1, Kind.EXCHANGE_PREVIOUS),
    Kind.SEND_PREVIOUS: (-1, Kind.RECEIVE_NEXT),
    Kind.RECEIVE_PREVIOUS: (-1, Kind.SEND_NEXT),
    Kind.EXCHANGE_PREVIOUS: (-1, Kind.EXCHANGE_NEXT),
}


def _blocked(programs: Sequence[list[Action]]) -> list[int]:
    """Runs programs whose messages need both ends at once; returns the stages left waiting."""
    left = [list(program) for program in programs]
    moved = True
    while moved:
        moved = False
        for stage, program in enumerate(left):
            while program and _step(left, stage, program[0]):
                moved = True
    return [stage for stage, program in enumerate(left) if program]


def _step(left: list[list[Action]], stage: int, action: Action) -> bool:
    if action.kind not in PARTNER:
        left[stage].pop(0)
        return True
    offset, wanted = PARTNER[action.kind]
    other = left[stage + offset]
    if not other or other[0].kind != wanted:
        return False
    left[stage].pop(0)
    other.pop(0)
    return True


def _programs(schedule: str, stages: int, micro_batches: int) -> list[list[Action]]:
    table = build_table(schedule, stages, micro_batches)
    return [actions_of(table, stage) for stage in range(stages)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
def test_no_stage_waits_for_ever(schedule: str, stages: int, micro_batches: int) -> None:
    """Every message finds its other end, whatever the numbers of stages and micro-batches."""
    programs = _programs(schedule, stages, micro_batches)
    assert _blocked(programs) == []
    passes = [a for a in programs[0] if a.kind in (Kind.FORWARD, Kind.BACKWARD)]
    assert len(passes) == 2 * micro_batches


def test_a_wrong_order_would_be_seen() -> None:
    """Two stages that both send first stay blocked: the check above can fail."""
    first = [Action(Kind.SEND_NEXT), Action(Kind.RECEIVE_NEXT)]
    second = [Action(Kind.SEND_PREVIOUS), Action(Kind.RECEIVE_PREVIOUS)]
    assert _blocked([first, second]) == [0, 1]


def test_the_steady_state_of_1f1b_exchanges() -> None:
    """Between a forward and a backward pass both messages go at once, as in Megatron-LM."""
    first, last = _programs("1f1b", 2, 3)
    kinds = [action.kind for action in first]
    assert kinds.count(Kind.EXCHANGE_NEXT) == 2
    assert kinds.count(Kind.SEND_NEXT) == kinds.count(Kind.RECEIVE_NEXT) == 1
    assert [a.kind for a in last].count(Kind.EXCHANGE_PREVIOUS) == 2
