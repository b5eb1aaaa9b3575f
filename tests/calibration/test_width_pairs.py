"""Stacks on classes of devices: widths of their own where enough runs tell them apart."""

import numpy as np
import pytest
from run_tables import run_of

from apss_jax.calibration.pairs import device_class, device_errors
from apss_jax.calibration.prediction import predict_runs
from apss_jax.calibration.widths import Misses, Width
from apss_jax.planning.uncertainty import Reach

GROUPS = {"H100": ("H100-SXM5-80GB", "H200-SXM-141GB"), "A100": ("A100-SXM4-80GB",)}
PLAIN = Reach(False, 0.0, 0.0, 0.0)
WIDTH = Width(0.2, 0.0, 0.0, 0.0)


def _errors(gpus: list[str], log_errors: list[float]) -> dict[str, float]:
    """Returns the error fraction that runs on some GPUs give each device type."""
    subjects = predict_runs([run_of(gpu_model=gpu) for gpu in gpus]).subjects
    misses = Misses.of(np.array(log_errors), np.ones(len(gpus)), [PLAIN] * len(gpus))
    found = device_errors(subjects, misses, WIDTH, GROUPS)
    return {name: each.step_time_error_fraction for each in found for name in each.devices}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("H200-SXM-141GB",), "H100"),
        (("T4-16GB", "V100-PCIe-16GB"), ""),
        (("H100-SXM5-80GB", "A100-SXM4-80GB"), None),
    ],
)
def test_a_cluster_is_of_the_class_of_its_types(types: tuple[str, ...], expected: str) -> None:
    """Types that share constants are one class, those that share none another; a mix is neither."""
    assert device_class(types, GROUPS) == expected


def test_classes_of_enough_runs_have_widths_of_their_own() -> None:
    """Errors of exp(0.1) on H100 and exp(0.4) on A100 are told for every type of each class."""
    found = _errors(["H100"] * 20 + ["A100"] * 20, [0.1] * 20 + [0.4] * 20)
    assert found == pytest.approx(
        dict.fromkeys(GROUPS["H100"], np.expm1(0.1)) | dict.fromkeys(GROUPS["A100"], np.expm1(0.4)),
        rel=1e-3,
    )


def test_a_class_of_few_runs_keeps_the_width_of_its_stack() -> None:
    """Nineteen runs tell nothing of their own."""
    assert _errors(["H100"] * 20 + ["A100"] * 19, [0.1] * 39).keys() == set(GROUPS["H100"])


def test_runs_in_fp8_are_a_class_of_their_own() -> None:
    """Of twenty errors of exp(0.1) in BF16 and of exp(0.4) in FP8 neither widens the other."""
    runs = [run_of(gpu_model="H100", precision=name) for name in ["bf16"] * 20 + ["fp8"] * 20]
    log_errors = np.array([0.1] * 20 + [0.4] * 20)
    misses = Misses.of(log_errors, np.ones(40), [PLAIN] * 40)
    wide, fp8 = device_errors(predict_runs(runs).subjects, misses, WIDTH, GROUPS)
    assert [wide.fp8, fp8.fp8] == [False, True]
    assert wide.step_time_error_fraction == pytest.approx(np.expm1(0.1), rel=1e-3)
    assert fp8.step_time_error_fraction == pytest.approx(np.expm1(0.4), rel=1e-3)


def test_few_runs_in_fp8_stay_with_the_others() -> None:
    """Nineteen are told with those in BF16, as a class of H100 beside one of A100."""
    kinds = [("H100", "bf16")] * 20 + [("H100", "fp8")] * 19 + [("A100", "bf16")]
    runs = [run_of(gpu_model=gpu, precision=name) for gpu, name in kinds]
    misses = Misses.of(np.full(40, 0.1), np.ones(40), [PLAIN] * 40)
    (found,) = device_errors(predict_runs(runs).subjects, misses, WIDTH, GROUPS)
    assert found.fp8 is None


def test_the_only_class_is_the_stack_itself() -> None:
    """Where all runs are of one class the stack's own width says it already."""
    assert not _errors(["H100"] * 40, [0.1] * 40)
