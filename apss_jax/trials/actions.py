"""What each stage does one after the other: passes, and messages to its neighbours.

A send and the next receive between the same two stages are one exchange where both stages have
them next to each other. Sends wait for their receiver, so two stages that each send first would
wait for ever.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from apss_jax.cost.op_table import Pass, ScheduleTable


class Kind(Enum):
    """A pass, or a message with the stage before or after."""

    FORWARD = "forward"
    BACKWARD = "backward"
    SEND_NEXT = "send to the next stage"
    RECEIVE_NEXT = "receive from the next stage"
    EXCHANGE_NEXT = "send to and receive from the next stage"
    SEND_PREVIOUS = "send to the previous stage"
    RECEIVE_PREVIOUS = "receive from the previous stage"
    EXCHANGE_PREVIOUS = "send to and receive from the previous stage"


class Action(NamedTuple):
    """One thing that a stage does; `micro_batch` is that of the pass, None for messages."""

    kind: Kind
    micro_batch: int | None = None


class _Op(NamedTuple):
    is_forward: bool
    micro_batch: int


Swap = tuple[int, int, int]
"""The first of two stages, the micro-batch that goes forward and the one that comes back."""


def actions_of(table: ScheduleTable, stage: int) -> list[Action]:
    """Returns the actions of one stage under a full table with one chunk for each stage."""
    ops = [_ops(table, s) for s in range(table.num_stages)]
    swaps = _swaps(ops)
    found: list[Action] = []
    received = False  # by the exchange before
    for here, following in zip(ops[stage], [*ops[stage][1:], None], strict=True):
        if not received:
            found += _receive(here, stage, table.num_stages)
        kind = Kind.FORWARD if here.is_forward else Kind.BACKWARD
        found.append(Action(kind, here.micro_batch))
        received = following is not None and _swap_at(here, following, stage) in swaps
        if received:
            exchange = Kind.EXCHANGE_NEXT if here.is_forward else Kind.EXCHANGE_PREVIOUS
            found.append(Action(exchange))
        else:
            found += _send(here, stage, table.num_stages)
    return found


def _ops(table: ScheduleTable, stage: int) -> list[_Op]:
    rows = zip(table.kind[:, stage].tolist(), table.micro_batch[:, stage].tolist(), strict=True)
    return [_Op(kind == Pass.FORWARD, micro) for kind, micro in rows if kind != Pass.IDLE]


def _swaps(ops: list[list[_Op]]) -> set[Swap]:
    """Returns the pairs of messages that both their stages have next to each other."""
    found = set()
    for stage in range(len(ops) - 1):
        ahead = {_swap_at(a, b, stage) for a, b in pairwise(ops[stage]) if a.is_forward}
        back = {_swap_at(a, b, stage + 1) for a, b in pairwise(ops[stage + 1]) if not a.is_forward}
        found |= (ahead & back) - {None}
    return {swap for swap in found if swap is not None}


def _swap_at(here: _Op, following: _Op, stage: int) -> Swap | None:
    """Returns the messages between two passes if they go to and come from the same stage."""
    if here.is_forward == following.is_forward:
        return None
    if here.is_forward:
        return stage, here.micro_batch, following.micro_batch
    return stage - 1, following.micro_batch, here.micro_batch


def _receive(op: _Op, stage: int, num_stages: int) -> list[Action]:
    if op.is_forward:
        return [Action(Kind.RECEIVE_PREVIOUS)] if stage > 0 else []
    return [Action(Kind.RECEIVE_NEXT)] if stage < num_stages - 1 else []


def _send(op: _Op, stage: int, num_stages: int) -> list[Action]:
    if op.is_forward:
        return [Action(Kind.SEND_NEXT)] if stage < num_stages - 1 else []
    return [Action(Kind.SEND_PREVIOUS)] if stage > 0 else []
