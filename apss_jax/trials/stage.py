"""One stage at work: its passes, the messages between them, and what they take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import jax.numpy as jnp

from apss_jax.trials.actions import Action, Kind
from apss_jax.trials.assignment import Assignment
from apss_jax.trials.programs import Channel, StagePrograms, make_channel, make_programs


@dataclass
class Meter:
    """Sums up what passes take; emulated ones are stretched to their time by sleeping."""

    wall_s: dict[Kind, float] = field(default_factory=dict)
    cpu_s: float = 0.0

    def run(self, kind: Kind, call: Callable[[], Any], at_least_s: float = 0.0) -> Any:
        """Returns the result of a call, once it is there."""
        start_s, cpu_s = time.perf_counter(), time.process_time()
        result = jax.block_until_ready(call())
        self.cpu_s += time.process_time() - cpu_s
        left_s = at_least_s - (time.perf_counter() - start_s)
        if left_s > 0:
            time.sleep(left_s)
        spent_s = time.perf_counter() - start_s
        self.wall_s[kind] = self.wall_s.get(kind, 0.0) + spent_s
        return result


@dataclass
class Stage:
    """One stage at work."""

    assignment: Assignment
    number: int
    programs: StagePrograms
    channels: dict[int, Channel]  # with the previous stage at -1, with the next at 1

    @staticmethod
    def of(assignment: Assignment, number: int) -> Stage:
        """Returns a stage with its weights in place."""
        programs = make_programs(assignment, number)
        channels = {}
        if number > 0:
            channels[-1] = make_channel(assignment, number - 1, programs)
        if number < assignment.num_stages - 1:
            channels[1] = make_channel(assignment, number, programs)
        return Stage(assignment, number, programs, channels)

    @property
    def is_last(self) -> bool:
        """Returns whether the stage ends in the loss."""
        return self.number == self.assignment.num_stages - 1

    def forward(self, meter: Meter, inputs: jax.Array, targets: jax.Array) -> Any:
        """Returns what the stage hands on, and what its backward pass needs."""
        programs = self.programs

        def call() -> Any:
            return programs.forward(programs.parameters, inputs, targets)

        return meter.run(Kind.FORWARD, call, self._emulated(self.assignment.emulated_forward_s))

    def backward(self, meter: Meter, residuals: Any, gradient: jax.Array, sums: Any) -> Any:
        """Returns the sums of gradients, and the gradient of the stage's input."""
        programs = self.programs

        def call() -> Any:
            return programs.backward(residuals, gradient, sums)

        return meter.run(Kind.BACKWARD, call, self._emulated(self.assignment.emulated_backward_s))

    def _emulated(self, times_s: tuple[float, ...] | None) -> float:
        return 0.0 if times_s is None else times_s[self.number]


@dataclass
class Step:
    """The state of one training step of one stage."""

    stage: Stage
    text: tuple[jax.Array, jax.Array]
    meter: Meter = field(default_factory=Meter)
    kept: deque[Any] = field(default_factory=deque)
    message: jax.Array | None = None  # what arrived last, or is to be sent next
    loss: float = 0.0

    def run(self, actions: list[Action]) -> Any:
        """Returns the gradients of all micro-batches."""
        sums = self.stage.programs.zeros()
        for action in actions:
            if action.kind is Kind.FORWARD:
                self._forward(action.micro_batch or 0)
            elif action.kind is Kind.BACKWARD:
                sums = self._backward(sums)
            else:
                self._talk(action.kind)
        return sums

    def _forward(self, micro_batch: int) -> None:
        inputs, targets = (one[micro_batch] for one in self.text)
        given = inputs if self.stage.number == 0 else self.message
        assert given is not None  # an action before has received it
        result, residuals = self.stage.forward(self.meter, given, targets)
        self.kept.append(residuals)
        self.message = result
        if self.stage.is_last:
            self.loss += float(result) / self.stage.assignment.num_micro_batches

    def _backward(self, sums: Any) -> Any:
        share = jnp.ones(()) / self.stage.assignment.num_micro_batches
        gradient = share if self.stage.is_last else self.message
        assert gradient is not None  # an action before has received it
        sums, self.message = self.stage.backward(self.meter, self.kept.popleft(), gradient, sums)
        return sums

    def _talk(self, kind: Kind) -> None:
        side = 1 if kind in _WITH_NEXT else -1
        channel = self.stage.channels[side]
        message = channel.blank() if kind in _RECEIVES else self.message
        assert message is not None  # a pass has made it
        self.message = channel.call(_program(channel, kind), message)


_WITH_NEXT: Final = {Kind.SEND_NEXT, Kind.RECEIVE_NEXT, Kind.EXCHANGE_NEXT}
_RECEIVES: Final = {Kind.RECEIVE_NEXT, Kind.RECEIVE_PREVIOUS}
_GOES_FORWARD: Final = {Kind.SEND_NEXT, Kind.RECEIVE_PREVIOUS}
_GOES_BACK: Final = {Kind.RECEIVE_NEXT, Kind.SEND_PREVIOUS}


def _program(channel: Channel, kind: Kind) -> Callable[[jax.Array], jax.Array]:
    if kind in _GOES_FORWARD:
        return channel.forward
    return channel.backward if kind in _GOES_BACK else channel.both
