"""The library's constants: found again from the model's own runs, priors where silent."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from run_tables import run_of

from apss_jax.calibration.evidence import (
    Evidence,
    memory_evidence,
    source_weights,
    step_time_evidence,
    thinned,
)
from apss_jax.calibration.fit import Surface, fit, refit
from apss_jax.calibration.folds import experiment_folds, held_out_figures
from apss_jax.calibration.library_constants import (
    LibraryConstant,
    constants_of,
    load_priors,
    prior_values,
    with_values,
)
from apss_jax.calibration.library_files import NewConstants, write_constants
from apss_jax.calibration.measured import Comparison
from apss_jax.calibration.prediction import Figures, Predictions, predict_runs, predict_subjects
from apss_jax.calibration.subject import Subject
from apss_jax.importers.clusters import list_stacks, load_device, load_link
from apss_jax.importers.library import LIBRARY
from apss_jax.schema.priors import Prior

LAYOUTS = [
    {"tp": tp, "pp": pp, "micro_batch": size, "global_batch": batch}
    for tp, pp in (("1", "1"), ("2", "2"), ("8", "1"), ("1", "4"))
    for size in ("1", "4")
    for batch in ("64", "256")
]
RUNS = [run_of(**layout) for layout in LAYOUTS]
GROUPS = {"H100": ("H100-SXM5-80GB",), "A100": ("A100-SXM4-80GB",)}


def _prior(of: str, group: str, field: str, value: float, sigma: float = 10.0) -> Prior:
    bounds = {"low": value / 20, "high": min(value * 20, 1.0) if of == "device" else value * 20}
    return Prior(of=of, group=group, field=field, value=value, sigma=sigma, source="test", **bounds)


SLOWDOWN = _prior("stack", "nemo", "gemm_slowdown", 1.3)
STEP = _prior("stack", "nemo", "step_s", 0.02)
OTHER = _prior("device", "A100", "gemm_fraction", 0.8)
TIMES = constants_of([SLOWDOWN, STEP, OTHER], GROUPS, ["nemo"])
TRUTH = np.array([0.9, 0.2, 0.8])


def _subjects() -> tuple[Subject, ...]:
    return predict_runs(RUNS).subjects


def _evidence(truth: np.ndarray, constants: Sequence[LibraryConstant]) -> Evidence:
    """Returns evidence of runs that took exactly what the model says for the true constants."""
    subjects = _subjects()
    figures = predict_subjects(with_values(subjects, constants, truth))
    comparison = Comparison.of(Predictions(subjects, figures, ()))
    return step_time_evidence(replace(comparison, step_time_s=figures.step_time_s))


@pytest.fixture(scope="module")
def surface() -> Surface:
    """A surface whose least misfit is at the true constants."""
    return Surface(_evidence(TRUTH, TIMES), tuple(TIMES))


def test_known_constants_are_found_again(surface: Surface) -> None:
    """The times of the model itself give its constants, priors a factor away notwithstanding."""
    found = fit(surface, thinned(surface.evidence))
    assert found.values[:2] == pytest.approx(TRUTH[:2], rel=0.03)
    assert (found.determined_fraction[:2] > 0.9).all()


def test_a_constant_without_information_stays(surface: Surface) -> None:
    """No run had an A100: its constant keeps the prior's value and all of its variance."""
    found = fit(surface, thinned(surface.evidence), rounds=1)
    assert found.values[2] == pytest.approx(0.8, rel=1e-9)
    assert found.determined_fraction[2] == 0.0


def test_a_constant_without_width_is_not_fitted() -> None:
    """It is what its prior says, also where that is 0."""
    fixed = constants_of(
        [Prior(of="stack", group="nemo", field="step_s", value=0.0, sigma=0.0, source="test")],
        GROUPS,
        ["nemo"],
    )
    found = fit(Surface(_evidence(np.array([0.0]), fixed), tuple(fixed)), np.arange(4))
    assert found.values.tolist() == [0.0]


def test_fits_do_not_follow_one_sick_run(surface: Surface) -> None:
    """A run that took ten times as long moves the constants by little."""
    evidence = surface.evidence
    measured = evidence.measured.copy()
    measured[3] *= 10.0
    sick = Surface(replace(evidence, measured=measured), surface.constants)
    assert fit(sick, np.arange(len(measured))).values[0] == pytest.approx(0.9, rel=0.1)


def test_a_far_start_makes_no_run_an_outlier(surface: Surface) -> None:
    """From three times the true slowdown, every run is far off, and all still count."""
    far = constants_of([_prior("stack", "nemo", "gemm_slowdown", 2.7, 1.0)], GROUPS, ["nemo"])
    evidence = _evidence(np.array([0.9]), far)
    found = fit(Surface(evidence, tuple(far)), thinned(evidence))
    assert found.values[0] == pytest.approx(0.9, rel=0.05)


def test_rows_that_are_left_out_for_speed_keep_their_weight() -> None:
    """A source of 800 rows, of which 200 are fitted, counts as sqrt(800) like any other."""
    subjects = _subjects()[:1] * 800
    figures = predict_subjects(subjects[:1])
    many = Figures(**{f.name: np.repeat(getattr(figures, f.name), 800, 0) for f in fields(Figures)})
    comparison = Comparison.of(Predictions(subjects, many, ()))
    evidence = step_time_evidence(replace(comparison, step_time_s=many.step_time_s))
    assert evidence.weight[thinned(evidence)].sum() == pytest.approx(np.sqrt(800))


def test_a_refit_without_some_runs_uses_only_the_others(surface: Surface) -> None:
    """What the left-out runs say changes nothing about the refitted constants."""
    found = fit(surface, thinned(surface.evidence))
    kept = np.arange(0, len(RUNS), 2)
    measured = surface.evidence.measured.copy()
    measured[1::2] *= 3.0
    other = Surface(replace(surface.evidence, measured=measured), surface.constants)
    expected = refit(surface, kept, found).values
    assert refit(other, kept, found).values == pytest.approx(expected, rel=1e-6)


def test_held_out_figures_come_from_the_other_folds(surface: Surface) -> None:
    """Each fold's runs are predicted by constants that were fitted on the rest, in order."""
    rows, subjects = thinned(surface.evidence), surface.evidence.subjects
    folds = np.arange(len(RUNS)) % 2
    found = fit(surface, rows)
    figures = held_out_figures(subjects, folds, [(surface, rows, found, folds)])
    values = refit(surface, rows[folds == 1], found).values
    expected = predict_subjects(with_values(subjects, TIMES, values)).step_time_s
    assert figures.step_time_s[folds == 0] == pytest.approx(expected[folds == 0], rel=1e-5)


def test_folds_keep_experiments_whole() -> None:
    """Runs of one model, cluster size and sequence length are left out together."""
    runs = [run_of(seq_len=length, micro_batch=size) for length in "1234" for size in "12"]
    folds = experiment_folds(predict_runs(runs).subjects)
    assert folds[0::2].tolist() == folds[1::2].tolist()
    assert sorted(folds[0::2].tolist()) == [0, 1, 2, 3]


def test_a_source_counts_as_the_root_of_its_rows() -> None:
    """100 rows of one source weigh as 10, 4 of another as 2."""
    weight = source_weights(["many"] * 100 + ["few"] * 4)
    assert weight[:100].sum() == pytest.approx(10.0)
    assert weight[100:].sum() == pytest.approx(2.0)


def test_outcomes_are_believed_of_some_sources_alone() -> None:
    """A run that ran out of memory counts for memory where its source's labels mean that."""
    labels = [run_of(oom=label, step_time_s=None) for label in "01"]
    comparison = Comparison.of(predict_runs(labels))
    assert len(memory_evidence(comparison, ["mine"]).subjects) == 2
    assert len(memory_evidence(comparison, ["others"]).subjects) == 0


PRIORS = load_priors()
SHIPPED = {
    name: constants_of(getattr(PRIORS, name), PRIORS.groups, list_stacks())
    for name in ("step_time", "memory")
}
TINY = {"model_name": None, "hidden": "512", "num_heads": "8", "seq_len": "512", "pp": "1"}
SAMPLES = [
    *RUNS[:6],
    run_of(gpu_model="A100-SXM4-80GB", flash_attention="2"),
    run_of(gpu_model="A100-SXM4-80GB", flash_attention="1"),
    run_of(flash_attention="1"),
    run_of(interconnect="NVLink; EFA", pp="1"),
    run_of(interconnect="NVLink; EFA", pp="4", tp="1"),
    run_of(gpu_model="B200-SXM-180GB", flash_attention="2"),
    run_of(precision="fp8", gpu_model="B200-SXM-180GB"),
    run_of(gpu_model="B300-SXM-288GB"),
    run_of(gpu_model="B300-SXM-288GB", precision="fp8", num_experts="8", topk="2"),
    run_of(num_experts="8", topk="2", num_layers="4", **TINY),
    run_of(precision="fp8", cp="2", pp="1", flash_attention="0"),
    run_of(gpu_model="A100-SXM4-80GB", framework="Megatron-DeepSpeed", flash_attention="0"),
    run_of(gpu_model="A100-SXM4-80GB", framework="Megatron-DeepSpeed", num_layers="4", **TINY),
    run_of(gpu_model="A100-SXM4-80GB", framework="Megatron-DeepSpeed", vocab="50257", tp="1"),
    run_of(framework="nanotron", **{**TINY, "pp": "2"}, num_layers="4"),
    run_of(framework="nanotron", pp="1", zero_stage="3", recompute="full"),
    run_of(framework="nanotron", pp="1", zero_stage="0"),
]


@pytest.mark.parametrize("quantity", ["step_time", "memory"])
def test_every_constant_matters_to_its_own_runs_alone(quantity: str) -> None:
    """Moving a constant changes no run that it does not belong to, and some that it does."""
    subjects = predict_runs(SAMPLES).subjects
    constants = [c for c in SHIPPED[quantity] if c.prior.sigma and _has_runs(c, subjects)]
    base = _figures(quantity, subjects, constants, prior_values(constants))
    for i, constant in enumerate(constants):
        values = prior_values(constants)
        values[i] *= 0.9
        moved = _figures(quantity, subjects, constants, values) != base
        belongs = np.array([constant.touches(subject) for subject in subjects])
        assert not moved[~belongs].any(), constant.key
        assert moved.any(), constant.key


def _has_runs(constant: LibraryConstant, subjects: Sequence[Subject]) -> bool:
    stacks = {s.stack.name for s in subjects}
    return constant.prior.of != "stack" or not stacks.isdisjoint(constant.names)


def _figures(
    quantity: str,
    subjects: Sequence[Subject],
    constants: Sequence[LibraryConstant],
    values: np.ndarray,
) -> np.ndarray:
    figures = predict_subjects(with_values(subjects, constants, values))
    return figures.step_time_s if quantity == "step_time" else figures.memory_bytes


def test_priors_name_library_files_and_their_fields() -> None:
    """Every constant is a field of every file that it says holds it."""
    for constant in (*SHIPPED["step_time"], *SHIPPED["memory"]):
        for name in constant.names:
            if constant.prior.of == "device":
                assert hasattr(load_device(name).device_type.rates, constant.prior.field)
            elif constant.prior.of == "link" and name != "stated network":
                assert hasattr(load_link(name), constant.prior.field)


def test_writing_keeps_everything_else(tmp_path: Path) -> None:
    """New values and sources go in, unknown fields and what the source says of the rest stay."""
    source = "a. Not fitted: b; gemm_fraction is assumed; c"
    device = {"device_type": {"rates": {"gemm_fraction": 0.5, "mine": 1, "source": source}}}
    for folder, name, data in (
        ("devices", "X", device),
        ("stacks", "s", {"step_s": 1.0, "extra": [1], "source": "old Not fitted: step_s."}),
        ("stacks", "t", {"step_s": 1.0}),
    ):
        path = tmp_path / folder / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data))
    new = NewConstants(
        devices={"X": {"gemm_fraction": 0.123456}},
        links={},
        stacks={"s": {"step_s": 2.0}},
        sources={"X": "new.", "s": "new."},
    )
    changed = write_constants(new, tmp_path)
    assert [path.stem for path in changed] == ["X", "s"]
    rates = json.loads(changed[0].read_text())["device_type"]["rates"]
    assert rates == {"gemm_fraction": 0.1235, "mine": 1, "source": "new. Not fitted: b; c"}
    assert json.loads(changed[1].read_text()) == {"step_s": 2.0, "extra": [1], "source": "new."}


def test_clusters_hold_the_library_s_rates() -> None:
    """Copies in cluster files equal the device and link files that they come from."""
    for path in sorted((LIBRARY / "clusters").glob("*.json")):
        data = json.loads(path.read_text())
        for name, kind in data["device_types"].items():
            own = json.loads((LIBRARY / "devices" / f"{name}.json").read_text())
            assert kind["rates"] == own["device_type"]["rates"], path.name
