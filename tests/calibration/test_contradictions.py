"""The list of measured runs that cannot be right."""

import re

import pytest

from apss_jax.calibration.parts import known_contradictions
from apss_jax.schema.runs import PUBLISHED_RUNS, Run, read_runs


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    """Returns the shipped runs by name."""
    return {str(run.run_id): run for run in read_runs(PUBLISHED_RUNS)}


def accumulated(run: Run) -> int | None:
    """Returns the sequences of a step by the run's own note, where it tells them."""
    found = re.search(r"grad_acc=(\d+)", run.note or "")
    return int(found[1]) * (run.dp or 1) * (run.micro_batch or 1) if found else None


def listed() -> list[str]:
    """Returns the names of all runs in the list."""
    return [name for each in known_contradictions() for name in each.runs]


def test_timed_runs_whose_accumulation_makes_another_batch_are_listed(runs: dict[str, Run]) -> None:
    """Their step time follows from the stated batch, so that one of the two is wrong."""
    wrong = {
        name
        for name, run in runs.items()
        if run.tokens_per_s_per_gpu and accumulated(run) not in (None, run.global_batch)
    }
    assert wrong and wrong == {name for name in listed() if accumulated(runs[name])}


def test_listed_runs_are_shipped_once_each(runs: dict[str, Run]) -> None:
    """Every name is a run of the shipped table with a time, and stands under one reason."""
    assert len(set(listed())) == len(listed())
    assert all(runs[name].step_time_s or runs[name].tokens_per_s_per_gpu for name in listed())
