"""The constants of a stack that a few runs may move, and how far off each is thought to be."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from apss_jax.schema.stack import Stack

NORMAL_80 = 1.2816  # standard deviations in half of an interval that holds 80 % of a normal


@dataclass(frozen=True)
class Constant:
    """A field of a stack with its prior: normal around the start value.

    Positive quantities vary by a factor, whose logarithm has the given spread; shares and sizes
    vary by an amount.
    """

    field: str
    spread: float
    needs: str  # the runs that would determine it
    by_factor: bool = True
    most: float = float("inf")

    def value(self, stack: Stack) -> float:
        """Returns what the stack says."""
        return float(getattr(stack, self.field))

    def can_move(self, stack: Stack) -> bool:
        """Returns whether it has anywhere to go: no factor moves a zero."""
        return not self.by_factor or self.value(stack) > 0

    def moved(self, stack: Stack, deviations: float) -> float:
        """Returns the value so many standard deviations from the stack's."""
        if self.by_factor:
            return self.value(stack) * exp(self.spread * deviations)
        return min(max(self.value(stack) + self.spread * deviations, 0.0), self.most)

    def probe(self, stack: Stack) -> float:
        """Returns by how many deviations to move it to see what it does, away from its bound."""
        return -PROBE if self.value(stack) + self.spread * PROBE > self.most else PROBE


PROBE = 0.25


def time_constants(base: Stack) -> tuple[Constant, ...]:
    """Returns what step times may move; first what stands for everything the others do not say.

    Spreads are near those of the shipped stacks (logarithms: 0.17 for `gemm_slowdown`, 0.7 for
    `kernel_s`, 0.5 for `transfer_latency_s`, 1.2 for `step_s`; shares: 0.3), wider where most
    stacks share one value that nobody measured (`cpu_forward_s`), assumed where only one has any.
    """
    overall = Constant(
        "time_factor", base.step_time_error_fraction / NORMAL_80, "any run with a step time"
    )
    return (
        overall,
        Constant("gemm_slowdown", 0.15, "runs of large layers beside runs bound by something else"),
        Constant("kernel_s", 0.7, "runs of small micro-batches beside large ones"),
        Constant("cpu_forward_s", 0.4, "runs of small layers, bound by the host"),
        Constant("tensor_pipeline_cpu_s", 0.5, "small layers under both tensor and pipeline"),
        Constant("collective_latency_s", 0.7, "runs of several tensor degrees"),
        Constant("transfer_latency_s", 0.7, "runs of several pipeline degrees"),
        Constant(
            "gradient_exposed_fraction",
            0.3,
            "runs of several data degrees and few micro-batches",
            by_factor=False,
            most=1.0,
        ),
        Constant("context_exposed_fraction", 0.3, "several context degrees", False, 1.0),
        Constant("step_s", 1.0, "short steps beside long ones"),
    )


def memory_constants(base: Stack) -> tuple[Constant, ...]:
    """Returns what measured memory may move."""
    return (
        Constant("activation_factor", 0.3, "measured memory of several micro-batches"),
        Constant("logit_bytes", 0.4, "measured memory of the last stage at several micro-batches"),
        Constant(
            "reserved_bytes",
            max(0.5 * base.reserved_bytes, MEMORY_SPREAD_BYTES),
            "measured memory of a stage that holds little else",
            by_factor=False,
        ),
    )


MEMORY_SPREAD_BYTES = 1.5 * 2**30
