"""The stack for unlisted frameworks: each stack one vote, as far as its runs determine it."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from run_tables import run_of

from apss_jax.calibration.evidence import step_time_evidence
from apss_jax.calibration.fit import Fitted, Surface
from apss_jax.calibration.library_constants import (
    FALLBACK,
    LibraryConstant,
    constants_of,
    with_values,
)
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.pooled import equal_votes, figures_without_own, pooled
from apss_jax.calibration.prediction import predict_runs, predict_subjects
from apss_jax.importers.clusters import load_stack
from apss_jax.schema.priors import EACH, Prior


def _prior(field: str, value: float, group: str = EACH) -> Prior:
    limits = {"low": value / 100, "high": value * 100}
    return Prior(
        of="stack", group=group, field=field, value=value, sigma=0.7, source="test", **limits
    )


def _fitted(field: str, prior: float, own: Mapping[str, tuple[float, float]]) -> Fitted:
    """Returns a fit of one constant: value and determined share by stack."""
    constants = tuple(LibraryConstant(_prior(field, prior), (name,)) for name in own)
    values, shares = (np.array(column) for column in zip(*own.values(), strict=True))
    return Fitted(constants, values, shares)


def test_stacks_that_runs_determine_count_like_the_prior() -> None:
    """Two known stacks at 2 and 8 times the prior: the geometric mean of 1, 2 and 8."""
    found = pooled(_fitted("step_s", 0.01, {"nemo": (0.02, 1.0), "fsdp": (0.08, 1.0)}))
    assert [constant.names for constant in found.constants] == [(FALLBACK,)]
    assert found.values[0] == pytest.approx(0.01 * 16 ** (1 / 3))
    assert found.determined_fraction[0] == pytest.approx(2 / 3)


def test_stacks_that_no_run_determines_change_nothing() -> None:
    """Ten stacks that stayed at their priors weigh nothing against one that is known."""
    known = {"nemo": (0.04, 1.0)}
    silent = {f"s{i}": (0.01, 0.0) for i in range(10)}
    one, many = (pooled(_fitted("step_s", 0.01, own)) for own in (known, {**known, **silent}))
    assert many.values[0] == pytest.approx(one.values[0]) == pytest.approx(0.02)


def test_a_half_determined_stack_says_what_its_runs_say() -> None:
    """A posterior half way between the prior and 4 times it counts as half a vote for 4 times."""
    found = pooled(_fitted("step_s", 0.01, {"nemo": (0.02, 0.5)}))
    assert np.log(found.values[0] / 0.01) == pytest.approx(0.5 * np.log(4) / 1.5)


def test_what_one_stack_alone_has_is_no_other_s() -> None:
    """A cost with a prior of its own for one stack is not passed on."""
    alone = LibraryConstant(_prior("bucket_step_s", 1e-6, "nanotron"), ("nanotron",))
    found = pooled(Fitted((alone,), np.array([5e-6]), np.array([1.0])))
    assert not found.constants


def _left_out_s(slower: float) -> np.ndarray:
    """Returns step times of two frameworks' runs, each without its own, one measured slower."""
    runs = [run_of(framework=name, run_id=f"{name}-1") for name in ("nanotron", "torchtitan")]
    stated = Comparison.of(predict_runs(runs))
    names = [subject.stack.name for subject in stated.subjects]
    constants = tuple(constants_of([_prior("gemm_slowdown", 1.0)], {}, names))
    found = Fitted(constants, np.ones(2), np.zeros(2))
    usual_s = predict_subjects(with_values(stated.subjects, constants, found.values)).step_time_s
    evidence = step_time_evidence(replace(stated, step_time_s=usual_s * [slower, 1.0]))
    subjects = predict_runs(runs, stack=load_stack(FALLBACK)).subjects
    return figures_without_own(
        subjects, [(Surface(evidence, constants), np.arange(2), found)]
    ).step_time_s


def test_a_framework_s_runs_are_predicted_without_it() -> None:
    """Slow runs of one framework make those of the other slower, themselves not."""
    usual, slow = _left_out_s(1.0), _left_out_s(1.1)
    assert slow[0] == pytest.approx(usual[0])
    assert slow[1] > 1.02 * usual[1]


def test_every_name_has_one_vote() -> None:
    """Of three runs two of one name weigh half each."""
    assert equal_votes(np.array(["a", "b", "a"])).tolist() == [0.5, 1.0, 0.5]
