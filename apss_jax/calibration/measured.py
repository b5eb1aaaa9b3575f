"""What was measured of runs, beside their predictions, as columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from apss_jax.calibration.prediction import Figures, Predictions
from apss_jax.calibration.subject import Subject
from apss_jax.units import GIB, TFLOP

PerRun = Float[np.ndarray, " batch"]
# Where a run's note states this formula, its operations per second are those of a known count:
# Narayanan et al. 2021, arXiv 2104.04473, equation 3, with all activations recomputed.
COUNTED_OPERATIONS: Final = re.compile(
    r"96 ?B ?s ?l ?h\^2 ?\(1 ?\+ ?s/6h ?\+ ?V/16lh\)", re.IGNORECASE
)


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
    """Returns the measured step time, or NaN.

    From tokens per second where only they are given; from operations per second where only they
    are, and the run says by which formula they were counted.
    """
    run = subject.run
    if run.step_time_s is not None:
        return run.step_time_s
    if run.tokens_per_s_per_gpu is not None:
        tokens = subject.global_batch * subject.seq_len
        return tokens / (run.tokens_per_s_per_gpu * subject.cluster.num_devices)
    if run.tflops_per_gpu is None or not COUNTED_OPERATIONS.search(run.note or ""):
        return float("nan")
    return _counted_operations(subject) / (run.tflops_per_gpu * TFLOP * subject.cluster.num_devices)


def _counted_operations(subject: Subject) -> float:
    """Returns 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)), the operations of a step."""
    model, seq_len = subject.model, subject.seq_len
    layers, hidden = model.num_layers, model.hidden_size or 0
    vocab = model.embedding.vocab_size if model.embedding else 0
    beside = 1.0 + seq_len / (6.0 * hidden) + vocab / (16.0 * layers * hidden)
    return 96.0 * subject.global_batch * seq_len * layers * hidden**2 * beside
