"""What an estimate says of memory and of how sure it is."""

import math
from typing import Any

import pytest
from called import CallFn

from apss_jax.planning.explain import NEAR_FULL_FRACTION

NODES = ["--cluster", "4x8xH100-SXM5-80GB", "--global-batch", "64", "--tp", "8"]


def plan_of(call: CallFn, *words: str) -> dict[str, Any]:
    """Returns the plan of an estimate of a 70B model."""
    done = call("estimate", "--model", "llama-3.1-70b", *words, "--json")
    assert done.code == 0
    plan: dict[str, Any] = done.document["plan"]
    return plan


def width(plan: dict[str, Any]) -> float:
    """Returns the half width of the interval, as a logarithm."""
    return math.log(plan["cost"]["step_time_high_s"] / plan["cost"]["step_time_s"])


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("--pp 4", None),
        ("--pp 2 --micro-batch 2 --recompute selective", "expect allocator retries"),
        ("--pp 1", "that is more than there is"),
    ],
)
def test_memory_is_told_of_the_heaviest_stage(call: CallFn, layout: str, words: str | None) -> None:
    """The stage is named with its share; from 85 % on a slower step is said, beyond 100 % that."""
    plan = plan_of(call, *NODES, "--stack", "megatron", *layout.split())
    needs = [stage["memory_bytes"] for stage in plan["stages"]]
    shares = [need["total"] / need["capacity"] for need in needs]
    heaviest = shares.index(max(shares))
    (told,) = [each for each in plan["explanation"] if "needs most memory" in each]
    assert told.startswith(f"stage {heaviest} needs most memory")
    assert (max(shares) > NEAR_FULL_FRACTION) == (words is not None)
    assert words is None or words in told


def test_a_chance_to_run_out_grows_with_the_need(call: CallFn) -> None:
    """No hard margin: the chance is between 0 and 1, and larger where more is needed."""
    whole, half = (plan_of(call, *NODES, "--stack", "megatron", "--pp", n) for n in ("1", "2"))
    chances = [max(s["oom_probability"] for s in plan["stages"]) for plan in (half, whole)]
    assert 0 <= chances[0] < chances[1] <= 1


def test_an_unlisted_framework_or_device_widens_the_interval(call: CallFn) -> None:
    """A listed framework is surer than `generic`, which is surer on an H100 than on an MI300X."""
    words = ("--pp", "4")
    own, other = (
        width(plan_of(call, *NODES, "--stack", s, *words)) for s in ("megatron", "generic")
    )
    far = width(
        plan_of(call, "--cluster", "4x8xMI300X", "--global-batch", "64", "--tp", "8", *words)
    )
    assert own < other < far
