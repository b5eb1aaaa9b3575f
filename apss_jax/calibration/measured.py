"""What was measured of runs, beside their predictions, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.calibration.prediction import Figures, Predictions
from apss_jax.calibration.subject import Subject
from apss_jax.units import GIB

PerRun = Float[np.ndarray, " batch"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Measured and predicted figures of the runs that were predicted; NaN: not measured."""

    subjects: tuple[Subject, ...]
    predicted: Figures
    step_time_s: PerRun
    memory_bytes: PerRun
    ran_out: Int[np.ndarray, " batch"]  # 1 or 0; -1 where the table does not say
    global_batch: PerRun

    @property
    def is_timed(self) -> Bool[np.ndarray, " batch"]:
        """Returns which runs have a measured step time."""
        return np.isfinite(self.step_time_s)

    @staticmethod
    def of(predictions: Predictions) -> Comparison:
        """Returns the comparison of what was predicted with what the table holds."""
        subjects = predictions.subjects
        memory_gib = [subject.run.peak_mem_gib or np.nan for subject in subjects]
        oom = [subject.run.oom for subject in subjects]
        return Comparison(
            subjects=subjects,
            predicted=predictions.figures,
            step_time_s=np.array([measured_step_s(subject) for subject in subjects]),
            memory_bytes=np.array(memory_gib) * GIB,
            ran_out=np.array([-1 if label is None else label for label in oom], dtype=int),
            global_batch=np.array([float(subject.global_batch) for subject in subjects]),
        )


def measured_step_s(subject: Subject) -> float:
    """Returns the measured step time, from tokens per second where only they are given, or NaN."""
    run = subject.run
    if run.step_time_s is not None:
        return run.step_time_s
    if run.tokens_per_s_per_gpu is None:
        return float("nan")
    tokens = subject.global_batch * subject.seq_len
    return tokens / (run.tokens_per_s_per_gpu * subject.cluster.num_devices)
