"""What an older file knows of links: each measurement answers one question of a new survey.

A survey asks the same questions in the same order as long as the answers are the same. So a run
that goes on with a file takes what is there, and measures from where the older one was ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from apss_jax.schema.link_measurements import LinkMeasurement, Operation, PairRate
from profiler.context import MeasuredLinks


@dataclass
class Recall:
    """Measurements that no question was answered by yet, in the order in which they were taken."""

    measurements: list[LinkMeasurement] = field(default_factory=list)
    pair_rates: list[PairRate] = field(default_factory=list)

    @staticmethod
    def of(known: MeasuredLinks | None) -> Recall:
        """Returns what a file knows; nothing without one."""
        if known is None:
            return Recall()
        return Recall(list(known.measurements), list(known.pair_rates))

    def measurement(
        self, operation: Operation, groups: Sequence[Sequence[int]]
    ) -> LinkMeasurement | None:
        """Returns the next measurement of an operation over these groups, and uses it up."""
        asked = (operation, tuple(groups[0]), len(groups))
        for place, one in enumerate(self.measurements):
            if (one.operation, one.devices, one.concurrent_groups) == asked:
                return self.measurements.pop(place)
        return None

    def pair_rate(self, sender: int, receiver: int) -> PairRate | None:
        """Returns the next rate from one device to another, and uses it up."""
        for place, one in enumerate(self.pair_rates):
            if (one.sender, one.receiver) == (sender, receiver):
                return self.pair_rates.pop(place)
        return None
