"""How long a point will take, from those that were measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from apss_jax.schema.cluster import LayerMeasurement
from profiler.meter import expected_flops
from profiler.points import Point

FIRST_S: Final = 5.0  # a point before anything is known: mostly compilation
LATEST: Final = 3  # points of a kind that are looked back at
CAUTION: Final = 1.1  # a point that is begun is also ended


@dataclass(frozen=True)
class _Past:
    fixed_s: float  # compilation, and all that does not grow with the work
    run_s: float
    work: float
    flops: float


@dataclass
class Pace:
    """Remembers what points took; `calls` is how often each pass of a point runs."""

    calls: int
    _past: dict[tuple[str, str], list[_Past]] = field(default_factory=dict)
    _latest: list[_Past] = field(default_factory=list)

    def learn(self, point: Point, row: LayerMeasurement, total_s: float) -> None:
        """Remembers a measured point."""
        run_s = min(total_s, self.calls * (row.forward_s + (row.backward_s or 0.0)))
        past = _Past(total_s - run_s, run_s, _work(point), expected_flops(point))
        self._past.setdefault(_kind(point), []).append(past)
        self._latest.append(past)

    def expected_s(self, point: Point) -> float:
        """Returns what a point will take: as others of its shape did, scaled with its work.

        A shape that is new takes what the latest points of others took, scaled where both have
        products: look-ups and updates have none, and another pace.
        """
        alike = self._past.get(_kind(point))
        recent = (alike or self._latest)[-LATEST:]
        if not recent:
            return FIRST_S
        if alike:
            run_s = max(past.run_s / past.work for past in recent) * _work(point)
        else:
            run_s = max(past.run_s * _ratio(expected_flops(point), past.flops) for past in recent)
        return CAUTION * (max(past.fixed_s for past in recent) + run_s)


def _kind(point: Point) -> tuple[str, str]:
    return point.subject.name, point.recompute


def _work(point: Point) -> float:
    values = point.tokens * point.subject.shape.hidden_size / point.tensor_parallel
    return values + expected_flops(point) + (point.subject.shape.num_parameters or 0)


def _ratio(one: float, other: float) -> float:
    return one / other if one and other else 1.0
