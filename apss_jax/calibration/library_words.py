"""What a library file says of its constants: which runs they were fitted on, what those determine.

A constant belongs to a group of files that share it, so its words come from the group: what all
stacks have in common is no file's own, and a link tells only the runs on links of its class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from jaxtyping import Bool

from apss_jax.calibration.evidence import Evidence, memory_evidence, step_time_evidence, thinned
from apss_jax.calibration.fit import Fitted
from apss_jax.calibration.library_constants import FALLBACK, LibraryConstant
from apss_jax.calibration.library_fit import LibraryFit
from apss_jax.calibration.subject import Subject
from apss_jax.schema.priors import ALL

COMMAND: Final = "python -m apss_jax.cli.fit"
DETERMINED: Final = 0.5  # share of its prior's variance that runs take from a constant
Kind = Literal["device", "link", "stack"]
Shares = list[tuple[LibraryConstant, float]]
"""Constants, each with the share of its prior's variance that runs take from it."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The runs that tell of a quantity; some only by whether they ran out of memory."""

    quantity: str
    subjects: tuple[Subject, ...]
    is_figure: Bool[np.ndarray, " batch"]
    is_fitted: Bool[np.ndarray, " batch"]  # of sources with many rows only some are

    @staticmethod
    def of(evidence: Evidence) -> Rows:
        """Returns the rows of an evidence."""
        is_fitted = np.zeros(len(evidence.subjects), dtype=bool)
        is_fitted[thinned(evidence)] = True
        quantity = "step times" if evidence.quantity == "step_time" else "peak memory"
        return Rows(quantity, evidence.subjects, np.isfinite(evidence.measured), is_fitted)

    def words(self, constants: Sequence[LibraryConstant]) -> str:
        """Returns in words which rows of which sources any of the constants touches."""
        mine = np.array([any(c.touches(s) for c in constants) for s in self.subjects], dtype=bool)
        parts = []
        if figures := self._counted(mine & self.is_figure):
            parts.append(f"{self.quantity} of {figures}")
        if outcomes := self._counted(mine & ~self.is_figure):
            parts.append(f"whether runs of {outcomes} fit in memory")
        return "on " + (" and ".join(parts) or "no run")

    def _counted(self, mine: Bool[np.ndarray, " batch"]) -> str:
        names = np.array([s.run.source_name for s in self.subjects], dtype=object)
        fitted = Counter(names[mine & self.is_fitted].tolist())
        told = [
            (name, f"{number}" if fitted[name] == number else f"{fitted[name]} of {number}")
            for name, number in Counter(names[mine].tolist()).most_common()
        ]
        return ", ".join(f"{name} ({rows})" for name, rows in told)


@dataclass(frozen=True, eq=False)
class Wording:
    """Texts for the files of one fit of the library."""

    found: LibraryFit
    rows: tuple[Rows, Rows]  # that tell of step times, and of memory

    @staticmethod
    def of(found: LibraryFit, label_sources: Sequence[str]) -> Wording:
        """Returns the wording of a fit, given the sources whose outcomes it believed."""
        own = found.own.comparison
        memory = memory_evidence(own, label_sources)
        return Wording(found, (Rows.of(step_time_evidence(own)), Rows.of(memory)))

    def of_stack(self, name: str) -> str:
        """Returns what a stack's file says."""
        left_out = "frameworks" if name == FALLBACK else "experiments"
        interval = f"Intervals hold 80 % of the runs of {left_out} that a fit was made without."
        own = self._pooled() if name == FALLBACK else self._own("stack", name)
        return " ".join([_HEAD, *own, *self._common(name), interval])

    def of_device(self, name: str) -> str:
        """Returns what a device's file says."""
        return " ".join([_HEAD, *self._own("device", name)])

    def of_link(self, name: str) -> str:
        """Returns what a link's file says."""
        return " ".join([_HEAD, *self._own("link", name)])

    def _own(self, kind: Kind, name: str) -> Iterable[str]:
        """Yields a sentence for each group and quantity that the file shares with few or none."""
        fit = self.found.own
        for fitted, told in zip((fit.step_time, fit.memory), self.rows, strict=True):
            groups = _groups(fitted, kind, name)
            groups.pop(ALL, None)
            for group, shares in groups.items():
                of_class = "" if kind == "stack" else f"class {group}, "
                yield _sentence(of_class + told.words([c for c, _ in shares]), shares)

    def _pooled(self) -> Iterable[str]:
        """Yields a sentence for what the stack for unlisted frameworks takes from the others."""
        fits = (self.found.generic.step_time, self.found.generic.memory)
        shares: Shares = []
        for fitted in fits:
            shares += zip(fitted.constants, fitted.determined_fraction.tolist(), strict=True)
        yield _sentence("means over all stacks, each as far as its runs determine it", shares)

    def _common(self, name: str) -> Iterable[str]:
        """Yields a sentence for the constants that all stacks share."""
        shares = _groups(self.found.own.step_time, "stack", name).get(ALL, [])
        if shares:
            listed = f"on the step times that {FALLBACK}.json lists"
            if name == FALLBACK:
                listed = self.rows[0].words(self.found.own.step_time.constants)
            yield _sentence(f"common to all stacks, {listed}", shares)


_HEAD: Final = f"Fitted by `make fit` ({COMMAND})."


def _groups(fitted: Fitted, kind: Kind, name: str) -> dict[str, Shares]:
    """Returns a file's constants by the group they belong to; of a stack's own, all in one."""
    groups: dict[str, Shares] = {}
    shares = zip(fitted.constants, fitted.determined_fraction.tolist(), strict=True)
    for constant, share in shares:
        prior = constant.prior
        if prior.of == kind and name in constant.names and prior.sigma > 0:
            is_own = kind == "stack" and prior.group != ALL
            groups.setdefault("" if is_own else prior.group, []).append((constant, share))
    return groups


def _sentence(where: str, shares: Shares) -> str:
    """Returns which constants the runs determine, and which stay near their priors."""
    known = [c.prior.field for c, share in shares if share >= DETERMINED]
    others = [c.prior.field for c, share in shares if share < DETERMINED]
    parts = [f"determined {', '.join(known)}"] if known else []
    if others:
        parts.append(f"near their priors (references/priors.json) {', '.join(others)}")
    return f"{where[0].upper()}{where[1:]}: {'; '.join(parts)}."
