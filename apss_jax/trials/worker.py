"""The process of one stage: `python -m apss_jax.trials.worker FOLDER STAGE PORT`.

It reads the assignment from the folder and writes its record there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from apss_jax.cost.schedule import build_table
from apss_jax.trials.actions import Action, Kind, actions_of
from apss_jax.trials.assignment import ASSIGNMENT, Assignment, StageRecord, StepRecord, record_name
from apss_jax.trials.gpt import training_text
from apss_jax.trials.programs import Channel
from apss_jax.trials.stage import Meter, Stage, Step

SOLO_REPEATS: Final = 7
START_TIMEOUT_S: Final = 120


def run_stage(assignment: Assignment, number: int) -> StageRecord:
    """Returns what one stage measured; the processes of all stages run it together."""
    stage = Stage.of(assignment, number)
    text = _placed_text(stage)
    table = build_table(assignment.schedule, assignment.num_stages, assignment.num_micro_batches)
    actions = actions_of(table, number)
    _train(stage, text, actions)  # compiles
    solo = None
    for turn in range(assignment.num_stages):
        if turn == number:
            solo = _alone(stage, text)
        _meet(f"alone {turn}")
    assert solo is not None  # every stage has its turn
    transfer_s = _transfers(stage)
    steps = []
    for step in range(assignment.steps):
        _meet(f"step {step}")
        steps.append(_train(stage, text, actions))
        _meet(f"end of step {step}")
    return StageRecord(*solo, transfer_s=transfer_s, steps=tuple(steps))


def _train(stage: Stage, text: tuple[jax.Array, jax.Array], actions: list[Action]) -> StepRecord:
    """Returns the record of one step; the stage's weights are updated."""
    step = Step(stage, text)
    start_s = time.perf_counter()
    gradients = step.run(actions)
    before_s = time.perf_counter()
    updated = stage.programs.update(stage.programs.parameters, gradients)
    jax.block_until_ready(updated)
    end_s = time.perf_counter()
    stage.programs.parameters.update(updated)
    return StepRecord(
        start_s=start_s,
        end_s=end_s,
        forward_s=step.meter.wall_s[Kind.FORWARD],
        backward_s=step.meter.wall_s[Kind.BACKWARD],
        update_s=end_s - before_s,
        cpu_s=step.meter.cpu_s,
        loss=step.loss if stage.is_last else None,
    )


def _alone(stage: Stage, text: tuple[jax.Array, jax.Array]) -> tuple[float, float, float]:
    """Returns seconds of both passes and of the update, while the other stages wait."""
    inputs, targets = text[0][0], text[1][0]
    if stage.number > 0:
        inputs = stage.channels[-1].blank()
    gradient = jnp.ones(()) if stage.is_last else stage.channels[1].blank()
    rounds = [_round(stage, inputs, targets, gradient) for _ in range(SOLO_REPEATS)]
    forward_s, backward_s, update_s = (median(times_s) for times_s in zip(*rounds, strict=True))
    return forward_s, backward_s, update_s


def _round(
    stage: Stage, inputs: jax.Array, targets: jax.Array, gradient: jax.Array
) -> tuple[float, float, float]:
    meter = Meter()
    _, residuals = stage.forward(meter, inputs, targets)
    sums, _ = stage.backward(meter, residuals, gradient, stage.programs.zeros())
    copy = jax.block_until_ready(jax.tree.map(jnp.copy, stage.programs.parameters))
    update_s = _seconds(lambda: stage.programs.update(copy, sums))
    return meter.wall_s[Kind.FORWARD], meter.wall_s[Kind.BACKWARD], update_s


def _seconds(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start_s


def _transfers(stage: Stage) -> float | None:
    """Returns seconds of one message to the next stage; pairs measure one after the other."""
    found = None
    for first in range(stage.assignment.num_stages - 1):
        side = {first: 1, first + 1: -1}.get(stage.number)
        if side is not None:
            taken_s = _time_transfer(stage.channels[side])
            found = taken_s if side == 1 else found
        _meet(f"transfers {first}")
    return found


def _time_transfer(channel: Channel) -> float:
    blank = channel.blank()
    times_s = []
    for _ in range(SOLO_REPEATS + 1):
        channel.call(channel.both, blank)  # both ends are here now
        start_s = time.perf_counter()
        # There and back: one end alone would not see when the other has the message.
        channel.call(channel.backward, channel.call(channel.forward, blank))
        times_s.append((time.perf_counter() - start_s) / 2)
    return median(times_s[1:])


def _placed_text(stage: Stage) -> tuple[jax.Array, jax.Array]:
    sharding = stage.programs.activation
    inputs, targets = training_text(stage.assignment)
    over = jax.sharding.PartitionSpec(None, *sharding.spec)
    place = jax.sharding.NamedSharding(sharding.mesh, over)
    return jax.device_put(inputs, place), jax.device_put(targets, place)


def _meet(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def main() -> None:
    """Runs one stage and ends the process."""
    folder, number, port = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    assignment = Assignment.read(folder / ASSIGNMENT)
    if assignment.num_stages > 1:
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            assignment.num_stages,
            number,
            initialization_timeout=START_TIMEOUT_S,
        )
    run_stage(assignment, number).write(folder / record_name(number))
    if assignment.num_stages > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
