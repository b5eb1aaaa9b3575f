"""A training run in a folder: goes on from what is saved, saves often, leaves a usable network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from apss_jax.policy.weights import Policy, write_policy
from apss_jax.training.checkpoint import append_metrics, cut_metrics, load_state, save_state
from apss_jax.training.evaluation import held_out, quick_figures
from apss_jax.training.steps import Report
from apss_jax.training.trainer import TrainingConfig, TrainingState, train
from apss_jax.training.version import training_figures

SAVED_EVERY: Final = 100
"""Steps between two states on disk: what a kill can cost."""

MEASURED_ON: Final = ("original", "closed", "simulated", "interleaved")
_PROBLEMS: Final = 128

OnReport = Callable[[Report], None]


def run_training(
    config: TrainingConfig, folder: Path, *, measured_every: int, on_report: OnReport
) -> Policy:
    """Returns the network after all steps, also written to the folder.

    The state on disk is that of the last save; figures of later steps are dropped when a run goes
    on from there, and come again the same.
    """
    state = load_state(folder, config)
    cut_metrics(folder, state.all_steps)
    problems = {name: held_out(name, _PROBLEMS) for name in MEASURED_ON} if measured_every else {}
    waiting: list[Report] = []
    with _event_writer(folder) as write_event:
        for figures in train(config, state):
            report = dict(figures)
            if state.orders.step == 0 and measured_every and state.step % measured_every == 0:
                report |= quick_figures(policy_of(config, state), problems)
            waiting.append(report)
            on_report(report)
            write_event(report)
            if state.all_steps % SAVED_EVERY == 0 or state.all_steps == config.all_steps:
                append_metrics(folder, waiting)
                save_state(folder, config, state)
                waiting = []
    policy = policy_of(config, state)
    write_policy(folder, policy, training_figures(config))
    return policy


def policy_of(config: TrainingConfig, state: TrainingState) -> Policy:
    """Returns the network as it is after the steps so far."""
    return Policy(config.network, state.params, config.orders.network, state.orders.params)


@contextlib.contextmanager
def _event_writer(folder: Path) -> Iterator[OnReport]:
    """Yields what writes TensorBoard's event files, or nothing where no writer is installed."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        yield lambda report: None
        return
    writer: Any = SummaryWriter(str(folder / "events"))

    def write(report: Report) -> None:
        for name, value in report.items():
            if name != "step" and isinstance(value, int | float):
                writer.add_scalar(name, value, report["step"])

    try:
        yield write
    finally:
        writer.close()
