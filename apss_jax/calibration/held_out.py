"""What `make fit` left beside the constants, and the runs that contradict them."""

from __future__ import annotations

from statistics import fmean

from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.parts import known_contradictions
from apss_jax.importers.library import library_names, read_library
from apss_jax.schema.references import Contradiction
from apss_jax.schema.validation import HeldOut


def shipped_held_out() -> HeldOut | None:
    """Returns how the shipped constants' fit does on runs left out of it, if there is one."""
    if "held_out" not in library_names("references"):
        return None
    return read_library(HeldOut, "references", "held_out")


def measured_and_predicted(comparison: Comparison) -> list[tuple[Contradiction, str]]:
    """Returns the runs that cannot be right with their mean step times in words."""
    row_of = {subject.run.run_id: i for i, subject in enumerate(comparison.subjects)}
    found = []
    for each in known_contradictions():
        rows = [row_of[name] for name in each.runs if name in row_of]
        rows = [i for i in rows if comparison.is_timed[i]]
        if rows:
            measured_s = fmean(comparison.step_time_s[rows])
            predicted_s = fmean(comparison.predicted.step_time_s[rows])
            found.append((each, f"measured {measured_s:.3g} s, predicted {predicted_s:.3g} s"))
    return found
