"""The constants that are fitted: which runs each one touches, and runs with other values of them.

What is fitted is data (`library/references/priors.json`), so one more constant is one more line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from jaxtyping import Float

from apss_jax.calibration.subject import Subject
from apss_jax.importers.library import read_library
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.priors import ALL, EACH, Prior, Priors
from apss_jax.schema.stack import Stack

Values = Float[np.ndarray, " quantities"]
Changes = dict[str, dict[str, float]]
"""New values by name of the device, link or stack, then by field."""

FALLBACK: Final = "generic"  # the stack of unlisted frameworks; no run is its own


@dataclass(frozen=True)
class LibraryConstant:
    """One constant, and the names of the library files that hold it."""

    prior: Prior
    names: tuple[str, ...]

    @property
    def key(self) -> str:
        """Returns how reports call it."""
        owner = self.names[0] if self.prior.group == EACH else self.prior.group
        return f"{owner} {self.prior.field}"

    def touches(self, subject: Subject) -> bool:
        """Returns whether the run's prediction may depend on the constant."""
        if self.prior.of == "stack":
            return subject.stack.name in self.names
        cluster = subject.cluster
        present = cluster.used_types if self.prior.of == "device" else tuple(cluster.links)
        return not set(self.names).isdisjoint(present)


def load_priors() -> Priors:
    """Returns the shipped priors."""
    return read_library(Priors, "references", "priors")


def constants_of(
    priors: Sequence[Prior], groups: dict[str, tuple[str, ...]], stacks: Iterable[str]
) -> list[LibraryConstant]:
    """Returns the constants that priors stand for, those of `each` stack once per given one."""
    found: dict[tuple[str, str], LibraryConstant] = {}
    named = sorted(set(stacks))
    for prior in priors:
        if prior.of != "stack":
            found[prior.group, prior.field] = LibraryConstant(prior, groups[prior.group])
            continue
        if prior.group == ALL:
            found[ALL, prior.field] = LibraryConstant(prior, (*named, FALLBACK))
            continue
        for name in named if prior.group == EACH else [prior.group] * (prior.group in named):
            found[name, prior.field] = LibraryConstant(prior, (name,))
    return list(found.values())


def prior_values(constants: Sequence[LibraryConstant]) -> Values:
    """Returns what the constants are believed to be before any run is seen."""
    return np.array([constant.prior.value for constant in constants])


def changes_of(constants: Sequence[LibraryConstant], values: Values, kind: str) -> Changes:
    """Returns the new values of one kind of library file."""
    changes: Changes = {}
    for constant, value in zip(constants, values.tolist(), strict=True):
        if constant.prior.of == kind:
            for name in constant.names:
                changes.setdefault(name, {})[constant.prior.field] = value
    return changes


def with_values(
    subjects: Sequence[Subject], constants: Sequence[LibraryConstant], values: Values
) -> list[Subject]:
    """Returns the runs with other constants; what was one object for several stays one."""
    stacks = changes_of(constants, values, "stack")
    devices = changes_of(constants, values, "device")
    links = changes_of(constants, values, "link")
    new_stacks = {id(s.stack): _stack(s.stack, stacks) for s in subjects}
    new_clusters = {id(s.cluster): _cluster(s.cluster, devices, links) for s in subjects}
    return [
        replace(s, stack=new_stacks[id(s.stack)], cluster=new_clusters[id(s.cluster)])
        for s in subjects
    ]


def _stack(stack: Stack, changes: Changes) -> Stack:
    own = changes.get(stack.name)
    return stack.model_copy(update=own) if own else stack


def _cluster(cluster: ClusterProfile, devices: Changes, links: Changes) -> ClusterProfile:
    kinds = {
        name: kind.model_copy(update={"rates": kind.rates.model_copy(update=devices[name])})
        for name, kind in cluster.device_types.items()
        if name in devices
    }
    ways = {
        name: link.model_copy(update=links[name])
        for name, link in cluster.links.items()
        if name in links
    }
    if not kinds and not ways:
        return cluster
    return cluster.model_copy(
        update={
            "device_types": {**cluster.device_types, **kinds},
            "links": {**cluster.links, **ways},
        }
    )
