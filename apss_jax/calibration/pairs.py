"""Stacks on classes of devices, FP8 apart: how far off where enough runs tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from apss_jax.calibration.intervals import FEW_ROWS
from apss_jax.calibration.subject import Subject
from apss_jax.calibration.widths import Chosen, Misses, Width, base_within
from apss_jax.schema.stack import DeviceError

DIGITS: Final = 4  # significant ones
Groups = Mapping[str, tuple[str, ...]]
"""Names of device types by the class that shares constants, a wider one first."""

UNLISTED: Final = ""  # the class of types that share no constants


def device_class(types: Sequence[str], groups: Groups) -> str | None:
    """Returns the class of a cluster's device types, None if they are of several."""
    classes = {
        next((group for group, names in groups.items() if name in names), UNLISTED)
        for name in types
    }
    return classes.pop() if len(classes) == 1 else None


def kinds_of(subjects: Sequence[Subject], groups: Groups) -> list[str]:
    """Returns what has widths of its own: the class of devices, FP8 apart."""
    classes = [device_class(s.cluster.used_types, groups) for s in subjects]
    fp8 = [s.precision == "fp8" for s in subjects]
    return [f"{name} {each}" for name, each in zip(classes, fp8, strict=True)]


def device_errors(
    subjects: Sequence[Subject], misses: Misses, width: Width, groups: Groups
) -> tuple[DeviceError, ...]:
    """Returns the error fractions of one stack's runs by class of devices, in its order.

    A class of few runs, or the only one, has none of its own: there the stack's holds. Where FP8
    and wider precisions have enough runs each, they are told apart: kernels and ways of scaling FP8
    differ more from release to release.
    """
    classes = np.array([device_class(s.cluster.used_types, groups) for s in subjects], dtype=object)
    is_fp8 = np.array([s.precision == "fp8" for s in subjects], dtype=bool)
    is_near = misses.far_doublings == 0
    found = []
    for name in [*groups, UNLISTED]:
        rows = classes == name
        own = [subjects[i].cluster for i in np.flatnonzero(rows).tolist()]
        types = {*groups.get(name, ()), *(kind for cluster in own for kind in cluster.used_types)}
        for fp8, part in _parts(rows, is_fp8, is_near).items():
            if (part & is_near).sum() < FEW_ROWS or part.all():
                continue
            fraction = np.expm1(base_within(misses.chosen(part & is_near), width))
            found.append(
                DeviceError(
                    devices=tuple(sorted(types)),
                    fp8=fp8,
                    step_time_error_fraction=float(f"{fraction:.{DIGITS}g}"),
                )
            )
    return tuple(found)


def _parts(rows: Chosen, is_fp8: Chosen, is_near: Chosen) -> dict[bool | None, Chosen]:
    """Returns a class's runs in wider precisions and in FP8, or together where one has few."""
    parts: dict[bool | None, Chosen] = {False: rows & ~is_fp8, True: rows & is_fp8}
    is_enough = all((part & is_near).sum() >= FEW_ROWS for part in parts.values())
    return parts if is_enough else {None: rows}
