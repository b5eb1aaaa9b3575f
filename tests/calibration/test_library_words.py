"""The words in library files about the runs that their constants were fitted on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from run_tables import run_of

from apss_jax.calibration.evidence import MAX_ROWS_PER_SOURCE
from apss_jax.calibration.fit import Fitted
from apss_jax.calibration.library_constants import (
    LibraryConstant,
    constants_of,
    load_priors,
    prior_values,
)
from apss_jax.calibration.library_fit import Fit, LibraryFit
from apss_jax.calibration.library_words import Wording
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.pooled import pooled
from apss_jax.calibration.prediction import predict_runs
from apss_jax.schema.priors import ALL, Prior

PRIORS = load_priors()
STACKS = ("nemo", "nanotron")
RUNS = [
    run_of(run_id="ours-1", interconnect="NVLink; InfiniBand NDR", num_gpus="16"),
    run_of(run_id="sea-1", framework="nanotron", interconnect="NVLink; EFA", num_gpus="16"),
    run_of(
        run_id="sea-2",
        framework="nanotron",
        interconnect="NVLink; EFA",
        num_gpus="16",
        peak_mem_gib="40",
    ),
    run_of(run_id="land-1", gpu_model="A100-SXM4-80GB", step_time_s=None, oom="0"),
]


def fitted(constants: Sequence[LibraryConstant]) -> Fitted:
    """Returns a fit in which the runs determine what is common and nothing else."""
    shares = [1.0 if c.prior.group in (ALL, "efa") else 0.0 for c in constants]
    return Fitted(tuple(constants), prior_values(constants), np.array(shares))


def constants(quantity: str, kinds: Sequence[str] = ("device", "link", "stack")) -> Fitted:
    """Returns a fit of the shipped constants of some kinds of files."""
    priors: tuple[Prior, ...] = getattr(PRIORS, quantity)
    chosen = [p for p in priors if p.of in kinds]
    return fitted(constants_of(chosen, PRIORS.groups, STACKS))


@pytest.fixture(scope="module")
def wording() -> Wording:
    """Returns the wording of a fit of a few runs."""
    predictions = predict_runs(RUNS)
    comparison = Comparison.of(predictions)
    own = Fit(comparison, constants("step_time"), constants("memory"), predictions.figures, ())
    generic = replace(own, step_time=pooled(own.step_time), memory=pooled(own.memory))
    return Wording.of(LibraryFit(own, generic, {}, ()), ["land"])


def sentence(text: str, word: str) -> str:
    """Returns the sentence of a text that has a word."""
    (found,) = [each for each in text.split(". ") if word in each]
    return found


def test_what_all_stacks_share_is_no_stack_s_own(wording: Wording) -> None:
    """Nanotron's runs have no experts; what those cost comes from other stacks' runs."""
    text = wording.of_stack("nanotron")
    common = sentence(text, "expert_gemm_slowdown")
    assert common.startswith("Common to all stacks, on the step times that generic.json lists")
    own = sentence(text, "gemm_slowdown, cpu_forward_s")
    assert own.startswith("On step times of sea (2): near their priors")
    assert "ours" not in text and "kernel_s" not in own


def test_the_generic_stack_is_told_as_a_mean_of_the_others(wording: Wording) -> None:
    """Its own constants name no runs; what is common lists all with a step time."""
    text = wording.of_stack("generic")
    own = sentence(text, "gemm_slowdown, cpu_forward_s")
    assert own.startswith("Means over all stacks, each as far as its runs determine it")
    common = sentence(text, "expert_gemm_slowdown")
    assert common.startswith("Common to all stacks, on step times of sea (2), ours (1)")


def test_memory_and_time_are_told_apart(wording: Wording) -> None:
    """Constants of memory name the runs with a peak memory or an outcome, no others."""
    text = wording.of_stack("nanotron")
    assert sentence(text, "logit_bytes").startswith("On peak memory of sea (1): ")
    assert sentence(wording.of_stack("nemo"), "logit_bytes").startswith("On whether runs of land")


def test_a_link_names_the_runs_on_links_of_its_class(wording: Wording) -> None:
    """Constants of EFA are fitted on its runs alone, those of other networks on theirs."""
    assert "Class efa, on step times of sea (2): determined" in wording.of_link("efa-p5")
    assert "sea" not in wording.of_link("ndr400") and "determined" not in wording.of_link("ndr400")


def test_a_device_tells_each_class_that_it_belongs_to(wording: Wording) -> None:
    """Some constants are of B200 alone, some common with B300; no run here had either."""
    text = wording.of_device("B200-SXM-180GB")
    assert sentence(text, "elementwise_passes").startswith("Class Blackwell, on no run")
    assert sentence(text, "fp8_gemm_fraction").startswith("Class B200, on no run")


def test_rows_that_are_left_out_of_a_fit_are_said() -> None:
    """Of a source with many rows only some are fitted."""
    predictions = predict_runs(RUNS[:1])
    subjects = predictions.subjects * (MAX_ROWS_PER_SOURCE + 3)
    one = Comparison.of(predictions)
    measured = ("step_time_s", "memory_bytes", "ran_out", "global_batch")
    columns: dict[str, Any] = {
        name: np.repeat(getattr(one, name), len(subjects)) for name in measured
    }
    many = replace(one, subjects=subjects, **columns)
    own = Fit(many, constants("step_time"), constants("memory"), one.predicted, ())
    text = Wording.of(LibraryFit(own, own, {}, ()), []).of_stack("nemo")
    assert f"ours ({MAX_ROWS_PER_SOURCE} of {len(subjects)})" in text
