"""Parts of sources that are worth telling apart: which runs belong to each."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from jaxtyping import Int

from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.subject import Subject
from apss_jax.importers.library import read_library
from apss_jax.schema.layers import MoeMlp
from apss_jax.schema.references import (
    Contradiction,
    ContradictionList,
    RunPart,
    RunPartList,
)


@cache
def known_parts() -> tuple[RunPart, ...]:
    """Returns the parts of the shipped table that are reported."""
    return read_library(RunPartList, "references", "run_parts").parts


@cache
def known_contradictions() -> tuple[Contradiction, ...]:
    """Returns the runs of the shipped table that cannot be right."""
    return read_library(ContradictionList, "references", "contradictions").contradictions


def rows_of(part: RunPart, comparison: Comparison) -> Int[np.ndarray, " batch"]:
    """Returns which of the predicted runs belong to a part."""
    return np.flatnonzero([belongs(subject, part) for subject in comparison.subjects])


def belongs(subject: Subject, part: RunPart) -> bool:
    """Returns whether a run belongs to a part."""
    run, layout = subject.run, subject.layout
    has_experts = any(isinstance(e.layer.feed_forward, MoeMlp) for e in subject.model.layers)
    texts = (
        (part.gpu, run.gpu_model),
        (part.framework, run.framework),
        (part.model, run.model_name),
        (part.precision, subject.precision),
    )
    limits = (
        (part.max_gpus, subject.cluster.num_devices),
        (part.max_tensor_parallel, layout.tensor_parallel),
        (part.max_pipeline_parallel, layout.pipeline_parallel),
    )
    return (
        run.source_name in part.sources
        and part.experts in (None, has_experts)
        and all(re.search(pattern, text or "", re.IGNORECASE) for pattern, text in texts)
        and all(most is None or value <= most for most, value in limits)
    )
