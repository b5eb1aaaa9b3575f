"""What may be expected of the plans of a case, one small function for each kind of check."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from case_files import Asked, Case

from apss_jax.calibration.validation import VERDICT_FROM
from apss_jax.planning.search import search_plans
from apss_jax.schema.plan import MemoryBytes
from apss_jax.units import GB, TFLOP

BORDER = 0.02  # probability of running out, or of not, from which a plan is not a clear case

VerdictFn = Callable[[Case, dict[str, Any]], Iterator[str]]
"""Yields what is not as a check says, in words."""


def failures(case: Case, check: dict[str, Any]) -> list[str]:
    """Returns what is not as a check says; nothing where the verdict is met."""
    return list(VERDICTS[check["check"]](case, check))


def risk(asked: Asked) -> float:
    """Returns the chance that the fullest stage runs out of memory."""
    return max(stage.oom_probability or 0.0 for stage in asked.estimate().plan.stages)


def memory(asked: Asked) -> list[MemoryBytes]:
    """Returns the memory of every stage."""
    return [stage.memory_bytes for stage in asked.estimate().plan.stages if stage.memory_bytes]


def fullest_gb(asked: Asked) -> float:
    """Returns what the fullest stage holds."""
    return max(part.total for part in memory(asked)) / GB


def step_s(asked: Asked) -> float:
    """Returns the step time."""
    cost = asked.estimate().plan.cost
    assert cost is not None
    return cost.step_time_s


def speed(asked: Asked) -> float:
    """Returns tokens per second and device."""
    return asked.global_batch * asked.seq_len / step_s(asked) / asked.layout.num_devices


def fits(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Each plan is more likely to fit than not."""
    for name in check["plans"]:
        asked = case.plans[name]
        if risk(asked) >= VERDICT_FROM:
            yield f"{name} runs out: {fullest_gb(asked):.1f} GB, P {risk(asked):.2f}"


def runs_out(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Each plan is more likely to run out of memory than not."""
    for name in check["plans"]:
        asked = case.plans[name]
        if risk(asked) < VERDICT_FROM:
            yield f"{name} fits: {fullest_gb(asked):.1f} GB, P {risk(asked):.2f}"


def borderline(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Of each plan neither outcome is sure."""
    for name in check["plans"]:
        chance = risk(case.plans[name])
        if not BORDER <= chance <= 1 - BORDER:
            yield f"{name} is sure: P {chance:.3f}, {fullest_gb(case.plans[name]):.1f} GB"


def memory_gb(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """The fullest stage of each plan holds what was measured."""
    for name, measured in check["plans"].items():
        yield from _off(name, "GB", fullest_gb(case.plans[name]), measured, check)


def memory_falls_gb(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """From the first plan to the second, memory falls by an amount."""
    first, second = (fullest_gb(case.plans[name]) for name in check["plans"])
    yield from _off("the fall", "GB", first - second, check["by"], check)


def memory_rises(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Each plan holds more than the one before it."""
    for one, other in pairwise(check["plans"]):
        sizes = fullest_gb(case.plans[one]), fullest_gb(case.plans[other])
        if sizes[0] >= sizes[1]:
            yield f"{other} holds {sizes[1]:.1f} GB, {one} {sizes[0]:.1f}"


def same_memory(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """All plans hold the same as the first."""
    first = fullest_gb(case.plans[check["plans"][0]])
    for name in check["plans"][1:]:
        yield from _off(name, "GB", fullest_gb(case.plans[name]), first, check)


def fastest_first(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """No plan is slower than one after it, per token and device, beyond a tie."""
    names = check["plans"]
    for i, name in enumerate(names):
        yield from _slower(case, name, names[i + 1 :], check)


def best(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """The first plan is slower than no other, beyond a tie."""
    yield from _slower(case, check["plans"][0], check["plans"][1:], check)


def _slower(case: Case, name: str, others: list[str], check: dict[str, Any]) -> Iterator[str]:
    tie = 1 + check.get("ties_percent", 0) / 100
    for other in others:
        ahead = speed(case.plans[other]) / speed(case.plans[name])
        if ahead > tie:
            yield f"{other} is {100 * (ahead - 1):.1f} % faster than {name}"


def speed_ratio(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """The first plan's tokens per second and device over the second's."""
    first, second = (speed(case.plans[name]) for name in check["plans"])
    yield from _outside("speed ratio", first / second, check)


def step_ratio(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """The first plan's step time over the second's."""
    first, second = (step_s(case.plans[name]) for name in check["plans"])
    yield from _outside("step ratio", first / second, check)


def step_time_s(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """The step of each plan takes what was measured."""
    for name, measured in check["plans"].items():
        yield from _off(name, "s", step_s(case.plans[name]), measured, check)


def illegal(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Each plan breaks a rule of this name."""
    for name in check["plans"]:
        broken = {each.rule for each in case.plans[name].estimate().violations}
        if check["rule"] not in broken:
            yield f"{name} breaks {broken or 'no rule'}"


def state_gb(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Weights, gradients and optimizer of all devices together take so much."""
    for name, measured in check["plans"].items():
        yield from _off(name, "GB", sum(_state(case.plans[name]).values()) / GB, measured, check)


def state_parts(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """Each part of the state is shown apart, at so many bytes per parameter."""
    for name in check["plans"]:
        asked = case.plans[name]
        for part, size in _state(asked).items():
            each = size / asked.model.num_parameters
            wanted = check["bytes_per_parameter"][part]
            yield from _off(f"{name}: {part}", "bytes", each, wanted, check)


def _state(asked: Asked) -> dict[str, float]:
    ranks = asked.layout.num_devices // asked.layout.pipeline_parallel
    parts = ("weights", "gradients", "optimizer")
    return {part: ranks * sum(getattr(m, part) for m in memory(asked)) for part in parts}


def no_plan(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """A search on each plan's cluster finds nothing, and says how much memory is missing."""
    for name in check["plans"]:
        asked = case.plans[name]
        found = search_plans(
            asked.model, asked.cluster, global_batch=asked.global_batch, seq_len=asked.seq_len
        )
        if found.plans or found.shortfall is None:
            yield f"{name}: {len(found.plans)} plans, shortfall {found.shortfall}"


def peak_tflops(case: Case, check: dict[str, Any]) -> Iterator[str]:
    """The rate that utilisation is a share of, which no plan exceeds."""
    for name, nominal in check["plans"].items():
        asked = case.plans[name]
        (kind,) = asked.cluster.used_types
        peak = asked.cluster.device_types[kind].peak_flops_per_s[asked.precision]
        yield from _off(name, "TFLOP/s", peak / TFLOP, nominal, check)
        cost = asked.estimate().plan.cost
        if cost is None or not 0 < (cost.mfu_fraction or 0) < 1:
            yield f"{name} has no utilisation below 1"


def _off(
    name: str, unit: str, found: float, measured: float, check: dict[str, Any]
) -> Iterator[str]:
    off = 100 * (found / measured - 1)
    if abs(off) > check["within_percent"]:
        yield f"{name}: {found:.4g} {unit} for {measured:.4g}, {off:+.0f} %"


def _outside(what: str, found: float, check: dict[str, Any]) -> Iterator[str]:
    low, high = check.get("between") or (check["at_least"], float("inf"))
    if not low <= found <= high:
        yield f"{what} {found:.3f}, not {low} to {high}"


VERDICTS: dict[str, VerdictFn] = {
    function.__name__: function
    for function in (
        fits, runs_out, borderline, memory_gb, memory_falls_gb, memory_rises, same_memory,
        fastest_first, best, speed_ratio, step_ratio, step_time_s, illegal, state_gb, state_parts,
        no_plan, peak_tflops,
    )
}  # fmt: skip
