"""Constants fitted to figures whose dependence on them is known."""

import numpy as np
import pytest
from builders import tiny_stack

from apss_jax.calibration.constant_fit import ConstantFit, fit_constants
from apss_jax.calibration.constants import Constant
from apss_jax.schema.stack import Stack

NOISE = 0.1
OVERALL = Constant("time_factor", 0.3, "any")
LAUNCH = Constant("kernel_s", 0.5, "small ones")
SHARE = Constant("gradient_exposed_fraction", 0.3, "data degrees", by_factor=False, most=1.0)
BASE = tiny_stack(kernel_s=1.0)


def predict(large_s: list[float]) -> object:
    """Returns the logarithm of factor x (own time + launch), for runs of some own times."""

    def figures(stack: Stack) -> np.ndarray:
        return np.log(stack.time_factor * (np.array(large_s) + stack.kernel_s))

    return figures


def fitted(large_s: list[float], truth: Stack, *constants: Constant) -> ConstantFit:
    """Returns the fit to what the true stack takes, without noise."""
    figures = predict(large_s)
    return fit_constants(
        BASE, constants or (OVERALL, LAUNCH), figures, figures(truth), NOISE, overall_first=True
    )


def test_one_run_moves_one_constant() -> None:
    """A run that took twice as long moves the overall factor alone, less than all the way.

    Prior deviation 0.3, noise 0.1: ln 2 x 0.09 / (0.09 + 0.01) = 0.9 ln 2, before Huber's weight.
    """
    found = fitted([9.0], tiny_stack(kernel_s=1.0, time_factor=1.1))
    assert [constant.field for constant in found.fitted] == ["time_factor"]
    assert np.log(found.stack.time_factor) == pytest.approx(0.9 * np.log(1.1), rel=1e-3)
    assert found.left["time_factor"] == pytest.approx(np.sqrt(0.1), rel=1e-3)


def test_runs_that_differ_tell_two_constants_apart() -> None:
    """Launch-bound runs beside others give both the factor and the launch time back."""
    truth = tiny_stack(kernel_s=2.0, time_factor=1.2)
    found = fitted([0.0, 0.0, 0.1, 50.0, 60.0, 70.0], truth)
    assert {constant.field for constant in found.fitted} == {"time_factor", "kernel_s"}
    assert found.stack.kernel_s == pytest.approx(2.0, rel=0.1)
    assert found.stack.time_factor == pytest.approx(1.2, rel=0.05)
    assert np.abs(found.residual).max() < 0.05


def test_equal_runs_determine_no_second_constant() -> None:
    """However many runs of one kind there are, they do not tell launches from the rest."""
    found = fitted([50.0] * 6, tiny_stack(kernel_s=2.0, time_factor=1.2))
    assert [constant.field for constant in found.fitted] == ["time_factor"]
    assert found.stack.kernel_s == 1.0
    assert found.left["kernel_s"] > 0.99


def test_what_has_no_effect_keeps_its_uncertainty() -> None:
    """A constant that no prediction depends on is left, with all of its uncertainty."""
    found = fitted([1.0, 5.0], tiny_stack(kernel_s=1.0, time_factor=1.2), OVERALL, SHARE)
    assert found.left["gradient_exposed_fraction"] == pytest.approx(1.0)
    assert found.stack.gradient_exposed_fraction == BASE.gradient_exposed_fraction


def test_one_bad_run_among_many_counts_little() -> None:
    """Five runs at the predicted time and one at three times it: the factor stays near one."""
    figures = predict([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    measured = figures(BASE)
    measured[2] += np.log(3.0)
    found = fit_constants(BASE, (OVERALL,), figures, measured, NOISE, overall_first=True)
    assert found.stack.time_factor < 1.05


def test_more_runs_leave_less_unknown() -> None:
    """A prediction is the surer, the more runs the factor was fitted on."""
    truth = tiny_stack(kernel_s=1.0, time_factor=1.2)
    deviations = [fitted([9.0] * n, truth, OVERALL).predicted_deviation for n in (1, 3, 9)]
    assert deviations == sorted(deviations, reverse=True)


def test_shares_stay_shares() -> None:
    """A share moves by an amount, never below 0 or above its bound."""
    stack = tiny_stack(gradient_exposed_fraction=0.9)
    assert SHARE.moved(stack, 3.0) == 1.0
    assert SHARE.moved(stack, -9.0) == 0.0
    assert SHARE.probe(stack) > 0 > SHARE.probe(tiny_stack())
